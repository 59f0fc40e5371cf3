from diloco.protocol import diloco_pb2 as _diloco_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToLeader(_message.Message):
    __slots__ = ("hello", "failed", "left", "version_received", "stepped", "draining", "wants", "state", "reads")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    VERSION_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STEPPED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    hello: RankHello
    failed: Failed
    left: Left
    version_received: VersionReceived
    stepped: Stepped
    draining: Draining
    wants: Wants
    state: StateSaid
    reads: Reads
    def __init__(self, hello: _Optional[_Union[RankHello, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., version_received: _Optional[_Union[VersionReceived, _Mapping]] = ..., stepped: _Optional[_Union[Stepped, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., wants: _Optional[_Union[Wants, _Mapping]] = ..., state: _Optional[_Union[StateSaid, _Mapping]] = ..., reads: _Optional[_Union[Reads, _Mapping]] = ...) -> None: ...

class FromLeader(_message.Message):
    __slots__ = ("welcome", "end", "left", "order", "deal", "cut", "drop", "counted", "state")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DEAL_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    welcome: RankWelcome
    end: End
    left: Left
    order: Order
    deal: Deal
    cut: Order
    drop: Drop
    counted: Counted
    state: StateOrder
    def __init__(self, welcome: _Optional[_Union[RankWelcome, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., deal: _Optional[_Union[Deal, _Mapping]] = ..., cut: _Optional[_Union[Order, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., counted: _Optional[_Union[Counted, _Mapping]] = ..., state: _Optional[_Union[StateOrder, _Mapping]] = ...) -> None: ...

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

class RankHello(_message.Message):
    __slots__ = ("job_uid", "unit", "attempt", "rank", "ranks", "framework", "fingerprint", "owned", "data_rank", "data_ranks", "dtypes", "inner_state", "held", "peer_address")
    class DtypesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    DATA_RANK_FIELD_NUMBER: _ClassVar[int]
    DATA_RANKS_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    INNER_STATE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    unit: str
    attempt: int
    rank: int
    ranks: int
    framework: str
    fingerprint: str
    owned: Pieces
    data_rank: int
    data_ranks: int
    dtypes: _containers.ScalarMap[str, str]
    inner_state: str
    held: Pieces
    peer_address: str
    def __init__(self, job_uid: _Optional[str] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., ranks: _Optional[int] = ..., framework: _Optional[str] = ..., fingerprint: _Optional[str] = ..., owned: _Optional[_Union[Pieces, _Mapping]] = ..., data_rank: _Optional[int] = ..., data_ranks: _Optional[int] = ..., dtypes: _Optional[_Mapping[str, str]] = ..., inner_state: _Optional[str] = ..., held: _Optional[_Union[Pieces, _Mapping]] = ..., peer_address: _Optional[str] = ...) -> None: ...

class RankWelcome(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    def __init__(self, session: _Optional[bytes] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("early",)
    EARLY_FIELD_NUMBER: _ClassVar[int]
    early: bool
    def __init__(self, early: _Optional[bool] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("incarnation", "t")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    t: int
    def __init__(self, incarnation: _Optional[bytes] = ..., t: _Optional[int] = ...) -> None: ...

class VersionReceived(_message.Message):
    __slots__ = ("fragment", "version")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: Version
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Stepped(_message.Message):
    __slots__ = ("tokens", "loss", "settled")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    loss: float
    settled: int
    def __init__(self, tokens: _Optional[int] = ..., loss: _Optional[float] = ..., settled: _Optional[int] = ...) -> None: ...

class Wants(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: int
    def __init__(self, batches: _Optional[int] = ...) -> None: ...

class Reads(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: str
    def __init__(self, data: _Optional[str] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Order(_message.Message):
    __slots__ = ("step", "adopt", "read_out", "seed", "begin", "finish", "drain", "quit", "release", "take_state")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    READ_OUT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    QUIT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    TAKE_STATE_FIELD_NUMBER: _ClassVar[int]
    step: int
    adopt: Adopt
    read_out: ReadOut
    seed: Seed
    begin: Begin
    finish: Finish
    drain: Drain
    quit: Quit
    release: Release
    take_state: TakeState
    def __init__(self, step: _Optional[int] = ..., adopt: _Optional[_Union[Adopt, _Mapping]] = ..., read_out: _Optional[_Union[ReadOut, _Mapping]] = ..., seed: _Optional[_Union[Seed, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., quit: _Optional[_Union[Quit, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., take_state: _Optional[_Union[TakeState, _Mapping]] = ...) -> None: ...

class Adopt(_message.Message):
    __slots__ = ("fragment", "version")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: Version
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class ReadOut(_message.Message):
    __slots__ = ("fragment", "t", "incarnation")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    t: int
    incarnation: bytes
    def __init__(self, fragment: _Optional[int] = ..., t: _Optional[int] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class Seed(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    def __init__(self, incarnation: _Optional[bytes] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finish(_message.Message):
    __slots__ = ("t",)
    T_FIELD_NUMBER: _ClassVar[int]
    t: int
    def __init__(self, t: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Quit(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: int
    message: str
    def __init__(self, status: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("t", "steps")
    T_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    t: int
    steps: int
    def __init__(self, t: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class TakeState(_message.Message):
    __slots__ = ("copy", "fragments")
    COPY_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    copy: int
    fragments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, copy: _Optional[int] = ..., fragments: _Optional[_Iterable[int]] = ...) -> None: ...

class Deal(_message.Message):
    __slots__ = ("ranges", "taken")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    taken: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., taken: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("fragment", "version")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: Version
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Counted(_message.Message):
    __slots__ = ("fragment", "t", "steps", "tokens", "samples_done", "tokens_done", "steps_done")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    t: int
    steps: int
    tokens: int
    samples_done: int
    tokens_done: int
    steps_done: int
    def __init__(self, fragment: _Optional[int] = ..., t: _Optional[int] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., samples_done: _Optional[int] = ..., tokens_done: _Optional[int] = ..., steps_done: _Optional[int] = ...) -> None: ...

class StateOrder(_message.Message):
    __slots__ = ("number", "read", "write", "rest", "forget", "store", "copy", "give", "passed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    GIVE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    read: StateRead
    write: StateWrite
    rest: StateRest
    forget: StateForget
    store: StateStore
    copy: StateCopy
    give: _diloco_pb2.Give
    passed: StatePassed
    def __init__(self, number: _Optional[int] = ..., read: _Optional[_Union[StateRead, _Mapping]] = ..., write: _Optional[_Union[StateWrite, _Mapping]] = ..., rest: _Optional[_Union[StateRest, _Mapping]] = ..., forget: _Optional[_Union[StateForget, _Mapping]] = ..., store: _Optional[_Union[StateStore, _Mapping]] = ..., copy: _Optional[_Union[StateCopy, _Mapping]] = ..., give: _Optional[_Union[_diloco_pb2.Give, _Mapping]] = ..., passed: _Optional[_Union[StatePassed, _Mapping]] = ...) -> None: ...

class StateRead(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class StateWrite(_message.Message):
    __slots__ = ("array", "values")
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    array: StateArray
    values: bytes
    def __init__(self, array: _Optional[_Union[StateArray, _Mapping]] = ..., values: _Optional[bytes] = ...) -> None: ...

class StateRest(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class StateCopy(_message.Message):
    __slots__ = ("donor", "former", "state", "shared")
    DONOR_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    donor: _diloco_pb2.Donor
    former: str
    state: str
    shared: Pieces
    def __init__(self, donor: _Optional[_Union[_diloco_pb2.Donor, _Mapping]] = ..., former: _Optional[str] = ..., state: _Optional[str] = ..., shared: _Optional[_Union[Pieces, _Mapping]] = ...) -> None: ...

class StateForget(_message.Message):
    __slots__ = ("copy",)
    COPY_FIELD_NUMBER: _ClassVar[int]
    copy: int
    def __init__(self, copy: _Optional[int] = ...) -> None: ...

class StatePassed(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class StateStore(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class StateArray(_message.Message):
    __slots__ = ("piece", "name", "dtype")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    piece: Piece
    name: str
    dtype: str
    def __init__(self, piece: _Optional[_Union[Piece, _Mapping]] = ..., name: _Optional[str] = ..., dtype: _Optional[str] = ...) -> None: ...

class StateSaid(_message.Message):
    __slots__ = ("number", "data", "last", "error", "shared", "whole", "bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    data: bytes
    last: bool
    error: str
    shared: StateWrite
    whole: _containers.RepeatedCompositeFieldContainer[WholeFragment]
    bytes: int
    def __init__(self, number: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., error: _Optional[str] = ..., shared: _Optional[_Union[StateWrite, _Mapping]] = ..., whole: _Optional[_Iterable[_Union[WholeFragment, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class WholeFragment(_message.Message):
    __slots__ = ("fragment", "version")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: int
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("rank", "status", "message")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    status: int
    message: str
    def __init__(self, rank: _Optional[int] = ..., status: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
