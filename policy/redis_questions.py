"""The part of the store on Redis that holds questions to engines and their answers; `redis_store` derives from it."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from specpilot.policy import redis_keys
from specpilot.policy.codec import decode_each, encode
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.questions import Answer, Question
from specpilot.policy.redis_connection import guarded
from specpilot.policy.redis_policies import PolicyRecords


class QuestionRecords(PolicyRecords):
    """Questions and answers; all expire by themselves."""

    @override
    @guarded
    def put_question(self, model: str, pool: str, question: Question) -> None:
        key = redis_keys.questions(model, pool)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(key, question.question_id, encode(question))
        pipe.pexpire(key, redis_keys.QUESTIONS_EXPIRE_MS)
        pipe.execute()
        self._announce(key, redis_keys.pool_changes(model, pool))

    @override
    @guarded
    def remove_question(self, model: str, pool: str, question_id: str) -> None:
        self._redis.hdel(redis_keys.questions(model, pool), question_id)

    @override
    @guarded
    def questions(self, model: str, pool: str) -> Sequence[Question]:
        return self._readable(Question, "the question", self._redis.hgetall(redis_keys.questions(model, pool)))

    @override
    @guarded
    def put_answer(self, answer: Answer) -> None:
        key = redis_keys.answer(answer.question_id, answer.engine_id)
        self._redis.set(key, encode(answer), px=redis_keys.QUESTIONS_EXPIRE_MS)

    @override
    @guarded
    def answers(self, question: Question) -> Mapping[str, Answer | InvalidDocumentError]:
        names = question.engines
        if not names:
            return {}
        stored = self._redis.mget([redis_keys.answer(question.question_id, name) for name in names])
        texts = {name.encode(): text for name, text in zip(names, stored, strict=True) if text is not None}
        return decode_each(Answer, texts)
