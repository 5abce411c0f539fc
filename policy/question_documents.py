"""The part of the store on Redis that holds questions to engines and their answers; `policy.store` derives from it."""

from collections.abc import Mapping, Sequence

from specpilot.policy import redis_keys
from specpilot.policy.codec import decode_each, encode
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.operator_documents import OperatorDocuments
from specpilot.policy.questions import Answer, Question
from specpilot.policy.redis_connection import guarded


@guarded
class QuestionDocuments(OperatorDocuments):
    """Questions and answers; all expire by themselves."""

    def put_question(self, model: str, pool: str, question: Question) -> None:
        """Ask engines of a pool: write the question for some seconds and announce it."""
        key = redis_keys.questions(model, pool)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(key, question.question_id, encode(question))
        pipe.pexpire(key, redis_keys.QUESTIONS_EXPIRE_MS)
        pipe.execute()
        self._announce(key, redis_keys.pool_changes(model, pool))

    def remove_question(self, model: str, pool: str, question_id: str) -> None:
        """Remove a question that needs no further answer."""
        self._redis.hdel(redis_keys.questions(model, pool), question_id)

    def questions(self, model: str, pool: str) -> Sequence[Question]:
        """Return the questions to engines of a pool that can be read."""
        return self._documents(Question, "the question", redis_keys.questions(model, pool))

    def put_answer(self, answer: Answer) -> None:
        """Answer a question; the answer expires within seconds."""
        key = redis_keys.answer(answer.question_id, answer.engine_id)
        self._redis.set(key, encode(answer), px=redis_keys.QUESTIONS_EXPIRE_MS)

    def answers(self, question: Question) -> Mapping[str, Answer | InvalidDocumentError]:
        """Return by engine the answers so far, or the faults of their documents."""
        names = question.engines
        if not names:
            return {}
        stored = self._redis.mget([redis_keys.answer(question.question_id, name) for name in names])
        texts = {name.encode(): text for name, text in zip(names, stored, strict=True) if text is not None}
        return decode_each(Answer, texts)
