"""The evidence's constants, each with its unit and what it trades."""

RATE = 0.9
"""What an estimate keeps of itself at each draft: a memory of ten drafts. Less follows a turn in the text sooner."""

START_TRIALS = 3.0
"""How many trials a beginning counts for (s). In the replay's data 2 to 4 predict alike."""

FIRST_DRAFTS = 5
"""How many drafts of a request count for where others of its kind begin."""

POOL_RATE = 0.98
"""What a beginning keeps of itself at each draft: a memory of ten requests."""

START_ACCEPTANCE = 0.7
"""p0 before any draft of any kind: the mean of the replay's data. Too high costs a few drafts, too low hides that
drafting would pay."""

KINDS = 64
"""How many kinds are remembered; those seen last."""

TEMPERATURES = (0.01, 0.5, 0.9)
"""Where one range of temperatures ends and the next begins; below the first vLLM samples greedily."""

FINE_LIMIT = 8
"""Up to how many decodes or verified tokens a step's cell names them exactly."""

CELLS_PER_OCTAVE = 4
"""Into how many cells each doubling is parted above that. The sums beside the counts keep each cell's exact means, so
more cells only help a cost that bends within one; each is seven series of metrics."""

COUNTED_TOGETHER = 32
"""After how many different steps they are counted: some tenths of a millisecond's worth with 32 running."""

STEPS_KEPT = 4096
"""Steps that are kept one by one until the law takes them: some seconds' worth on the fastest engine."""
