from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToLeader(_message.Message):
    __slots__ = ("here", "failed", "left")
    HERE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    here: Here
    failed: Failed
    left: Left
    def __init__(self, here: _Optional[_Union[Here, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ...) -> None: ...

class FromLeader(_message.Message):
    __slots__ = ("met", "end", "left")
    MET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    met: Met
    end: End
    left: Left
    def __init__(self, met: _Optional[_Union[Met, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("tensor", "start", "size")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    start: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[str] = ..., start: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ...) -> None: ...

class Pieces(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Here(_message.Message):
    __slots__ = ("job_uid", "unit", "attempt", "rank", "ranks", "framework", "fingerprint", "owned")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    unit: str
    attempt: int
    rank: int
    ranks: int
    framework: str
    fingerprint: str
    owned: Pieces
    def __init__(self, job_uid: _Optional[str] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., ranks: _Optional[int] = ..., framework: _Optional[str] = ..., fingerprint: _Optional[str] = ..., owned: _Optional[_Union[Pieces, _Mapping]] = ...) -> None: ...

class Met(_message.Message):
    __slots__ = ("session", "owned")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    owned: _containers.RepeatedCompositeFieldContainer[Pieces]
    def __init__(self, session: _Optional[bytes] = ..., owned: _Optional[_Iterable[_Union[Pieces, _Mapping]]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class End(_message.Message):
    __slots__ = ("rank", "status", "message")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    status: int
    message: str
    def __init__(self, rank: _Optional[int] = ..., status: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
