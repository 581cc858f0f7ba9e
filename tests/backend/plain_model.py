"""Conversations as a person would describe them: the plain model that the interleavings are compared with."""

from dataclasses import dataclass, field


@dataclass
class ModelAttempt:
    id: str
    text: str = ""
    state: str = "sending"

    @property
    def alive(self) -> bool:
        return self.state in ("sending", "streaming")


@dataclass
class ModelTurn:
    question: str
    request_id: str
    message_id: str
    attempts: list[ModelAttempt]
    selected: ModelAttempt

    @property
    def current(self) -> ModelAttempt:
        return self.attempts[-1]


@dataclass
class ModelConversation:
    id: str
    turns: list[ModelTurn] = field(default_factory=list)

    def prompt_of(self, turn: ModelTurn) -> list[tuple[str, str]]:
        prompt: list[tuple[str, str]] = []
        for earlier in self.turns[: self.turns.index(turn) + 1]:
            if prompt and prompt[-1][0] == "user":
                prompt[-1] = ("user", f"{prompt[-1][1]}\n\n{earlier.question}")
            else:
                prompt.append(("user", earlier.question))
            reply = earlier.selected
            if earlier is not turn and reply.text and not reply.alive and reply.state != "failed":
                prompt.append(("assistant", reply.text))
        return prompt
