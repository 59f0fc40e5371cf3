from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromLearner(_message.Message):
    __slots__ = ("hello", "progress", "chunk", "work_wanted", "evaluation", "bye", "taken", "alive", "acknowledged")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WORK_WANTED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    progress: Progress
    chunk: Chunk
    work_wanted: WorkWanted
    evaluation: Evaluation
    bye: Bye
    taken: Taken
    alive: Alive
    acknowledged: Taken
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., work_wanted: _Optional[_Union[WorkWanted, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., acknowledged: _Optional[_Union[Taken, _Mapping]] = ...) -> None: ...

class ToLearner(_message.Message):
    __slots__ = ("welcome", "pull", "chunk", "work", "done", "refused", "taken", "rest", "donor", "give", "marker", "acknowledged")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    DONOR_FIELD_NUMBER: _ClassVar[int]
    GIVE_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    pull: Pull
    chunk: Chunk
    work: Work
    done: Done
    refused: Refused
    taken: Taken
    rest: Rest
    donor: Donor
    give: Give
    marker: Marker
    acknowledged: Taken
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., rest: _Optional[_Union[Rest, _Mapping]] = ..., donor: _Optional[_Union[Donor, _Mapping]] = ..., give: _Optional[_Union[Give, _Mapping]] = ..., marker: _Optional[_Union[Marker, _Mapping]] = ..., acknowledged: _Optional[_Union[Taken, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "shape", "embedding", "stack_axes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    STACK_AXES_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    embedding: bool
    stack_axes: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., embedding: _Optional[bool] = ..., stack_axes: _Optional[int] = ...) -> None: ...

class FrozenTensor(_message.Message):
    __slots__ = ("name", "shape", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    digest: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., digest: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job_uid", "unit", "attempt", "session", "framework", "tensors", "fingerprint", "incarnation", "versions", "samples_leased", "ranks", "owned", "rank", "process", "acknowledges", "peer_address", "rank_addresses", "inner_state", "locality", "cluster", "frozen", "checksums", "acknowledges_beside")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_LEASED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    INNER_STATE_FIELD_NUMBER: _ClassVar[int]
    LOCALITY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_BESIDE_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    unit: str
    attempt: int
    session: bytes
    framework: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    fingerprint: str
    incarnation: bytes
    versions: _containers.RepeatedScalarFieldContainer[int]
    samples_leased: int
    ranks: int
    owned: _containers.RepeatedCompositeFieldContainer[PieceMap]
    rank: int
    process: bytes
    acknowledges: bool
    peer_address: str
    rank_addresses: _containers.RepeatedScalarFieldContainer[str]
    inner_state: str
    locality: str
    cluster: str
    frozen: _containers.RepeatedCompositeFieldContainer[FrozenTensor]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    acknowledges_beside: bool
    def __init__(self, job_uid: _Optional[str] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., session: _Optional[bytes] = ..., framework: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., fingerprint: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., versions: _Optional[_Iterable[int]] = ..., samples_leased: _Optional[int] = ..., ranks: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[PieceMap, _Mapping]]] = ..., rank: _Optional[int] = ..., process: _Optional[bytes] = ..., acknowledges: _Optional[bool] = ..., peer_address: _Optional[str] = ..., rank_addresses: _Optional[_Iterable[str]] = ..., inner_state: _Optional[str] = ..., locality: _Optional[str] = ..., cluster: _Optional[str] = ..., frozen: _Optional[_Iterable[_Union[FrozenTensor, _Mapping]]] = ..., checksums: _Optional[_Iterable[int]] = ..., acknowledges_beside: _Optional[bool] = ...) -> None: ...

class PieceMap(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("tensor", "start", "size")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    start: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[int] = ..., start: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "t", "steps", "seed_wanted", "fragments", "resumed", "takes_cancelled", "ranks", "acknowledges", "acknowledges_beside")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_WANTED_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    TAKES_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_BESIDE_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    t: int
    steps: int
    seed_wanted: bool
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentNames]
    resumed: bool
    takes_cancelled: bool
    ranks: int
    acknowledges: bool
    acknowledges_beside: bool
    def __init__(self, incarnation: _Optional[bytes] = ..., t: _Optional[int] = ..., steps: _Optional[int] = ..., seed_wanted: _Optional[bool] = ..., fragments: _Optional[_Iterable[_Union[FragmentNames, _Mapping]]] = ..., resumed: _Optional[bool] = ..., takes_cancelled: _Optional[bool] = ..., ranks: _Optional[int] = ..., acknowledges: _Optional[bool] = ..., acknowledges_beside: _Optional[bool] = ...) -> None: ...

class FragmentNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("kind", "fragment", "t", "coding", "base", "total", "offset", "data", "steps", "tokens", "samples_done", "tokens_done", "steps_done", "cancelled", "merged", "acknowledged", "checksum")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Chunk.Kind]
        SEED: _ClassVar[Chunk.Kind]
        PUSH: _ClassVar[Chunk.Kind]
        BROADCAST: _ClassVar[Chunk.Kind]
        STATE: _ClassVar[Chunk.Kind]
    KIND_UNSPECIFIED: Chunk.Kind
    SEED: Chunk.Kind
    PUSH: Chunk.Kind
    BROADCAST: Chunk.Kind
    STATE: Chunk.Kind
    class Coding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODING_UNSPECIFIED: _ClassVar[Chunk.Coding]
        FLOAT32: _ClassVar[Chunk.Coding]
        BFLOAT16_DELTA: _ClassVar[Chunk.Coding]
        INT4_DELTA: _ClassVar[Chunk.Coding]
    CODING_UNSPECIFIED: Chunk.Coding
    FLOAT32: Chunk.Coding
    BFLOAT16_DELTA: Chunk.Coding
    INT4_DELTA: Chunk.Coding
    KIND_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    kind: Chunk.Kind
    fragment: int
    t: int
    coding: Chunk.Coding
    base: int
    total: int
    offset: int
    data: bytes
    steps: int
    tokens: int
    samples_done: int
    tokens_done: int
    steps_done: int
    cancelled: bool
    merged: int
    acknowledged: Taken
    checksum: int
    def __init__(self, kind: _Optional[_Union[Chunk.Kind, str]] = ..., fragment: _Optional[int] = ..., t: _Optional[int] = ..., coding: _Optional[_Union[Chunk.Coding, str]] = ..., base: _Optional[int] = ..., total: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., samples_done: _Optional[int] = ..., tokens_done: _Optional[int] = ..., steps_done: _Optional[int] = ..., cancelled: _Optional[bool] = ..., merged: _Optional[int] = ..., acknowledged: _Optional[_Union[Taken, _Mapping]] = ..., checksum: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("local_step", "steps", "tokens", "step_seconds", "loss", "samples_done", "tokens_done", "t", "own_data")
    LOCAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    OWN_DATA_FIELD_NUMBER: _ClassVar[int]
    local_step: int
    steps: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    step_seconds: float
    loss: float
    samples_done: int
    tokens_done: int
    t: int
    own_data: bool
    def __init__(self, local_step: _Optional[int] = ..., steps: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., samples_done: _Optional[int] = ..., tokens_done: _Optional[int] = ..., t: _Optional[int] = ..., own_data: _Optional[bool] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("local_step", "pause", "pause_left", "finish", "holds_parameters", "recovery")
    LOCAL_STEP_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_LEFT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    HOLDS_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    local_step: int
    pause: str
    pause_left: float
    finish: str
    holds_parameters: bool
    recovery: Recovery
    def __init__(self, local_step: _Optional[int] = ..., pause: _Optional[str] = ..., pause_left: _Optional[float] = ..., finish: _Optional[str] = ..., holds_parameters: _Optional[bool] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("phase", "round", "failed", "why", "unit", "attempt", "t", "bytes", "start_seconds", "parameters_seconds", "donor_seconds", "wait_seconds", "copy_seconds", "first_step_seconds", "stored", "steps", "not_stored")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[Recovery.Phase]
        WANTED: _ClassVar[Recovery.Phase]
        COPYING: _ClassVar[Recovery.Phase]
        OVER: _ClassVar[Recovery.Phase]
    PHASE_UNSPECIFIED: Recovery.Phase
    WANTED: Recovery.Phase
    COPYING: Recovery.Phase
    OVER: Recovery.Phase
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DONOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COPY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NOT_STORED_FIELD_NUMBER: _ClassVar[int]
    phase: Recovery.Phase
    round: int
    failed: _containers.RepeatedScalarFieldContainer[str]
    why: str
    unit: str
    attempt: int
    t: int
    bytes: int
    start_seconds: float
    parameters_seconds: float
    donor_seconds: float
    wait_seconds: float
    copy_seconds: float
    first_step_seconds: float
    stored: bool
    steps: int
    not_stored: str
    def __init__(self, phase: _Optional[_Union[Recovery.Phase, str]] = ..., round: _Optional[int] = ..., failed: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., t: _Optional[int] = ..., bytes: _Optional[int] = ..., start_seconds: _Optional[float] = ..., parameters_seconds: _Optional[float] = ..., donor_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., copy_seconds: _Optional[float] = ..., first_step_seconds: _Optional[float] = ..., stored: _Optional[bool] = ..., steps: _Optional[int] = ..., not_stored: _Optional[str] = ...) -> None: ...

class Donor(_message.Message):
    __slots__ = ("round", "unit", "attempt", "address", "rank_addresses", "grant", "why", "former")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    round: int
    unit: str
    attempt: int
    address: str
    rank_addresses: _containers.RepeatedScalarFieldContainer[str]
    grant: bytes
    why: str
    former: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., address: _Optional[str] = ..., rank_addresses: _Optional[_Iterable[str]] = ..., grant: _Optional[bytes] = ..., why: _Optional[str] = ..., former: _Optional[_Iterable[str]] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("t",)
    T_FIELD_NUMBER: _ClassVar[int]
    t: int
    def __init__(self, t: _Optional[int] = ...) -> None: ...

class Give(_message.Message):
    __slots__ = ("unit", "attempt", "grant")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    attempt: int
    grant: bytes
    def __init__(self, unit: _Optional[str] = ..., attempt: _Optional[int] = ..., grant: _Optional[bytes] = ...) -> None: ...

class StateWanted(_message.Message):
    __slots__ = ("job_uid", "unit", "attempt", "grant", "fingerprint", "inner_state", "incarnation", "versions", "hears_waiting", "pieces", "rank", "without_rest")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    INNER_STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    HEARS_WAITING_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_REST_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    unit: str
    attempt: int
    grant: bytes
    fingerprint: str
    inner_state: str
    incarnation: bytes
    versions: _containers.RepeatedScalarFieldContainer[int]
    hears_waiting: bool
    pieces: PieceMap
    rank: int
    without_rest: bool
    def __init__(self, job_uid: _Optional[str] = ..., unit: _Optional[str] = ..., attempt: _Optional[int] = ..., grant: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., inner_state: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., versions: _Optional[_Iterable[int]] = ..., hears_waiting: _Optional[bool] = ..., pieces: _Optional[_Union[PieceMap, _Mapping]] = ..., rank: _Optional[int] = ..., without_rest: _Optional[bool] = ...) -> None: ...

class StateMessage(_message.Message):
    __slots__ = ("part", "end", "chunk")
    PART_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    part: StatePart
    end: StateEnd
    chunk: Chunk
    def __init__(self, part: _Optional[_Union[StatePart, _Mapping]] = ..., end: _Optional[_Union[StateEnd, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class StatePart(_message.Message):
    __slots__ = ("index", "arrays", "versions", "bytes", "checksum")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    index: int
    arrays: _containers.RepeatedCompositeFieldContainer[StateArray]
    versions: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    checksum: int
    def __init__(self, index: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[StateArray, _Mapping]]] = ..., versions: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class StateArray(_message.Message):
    __slots__ = ("piece", "name", "dtype")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    piece: Piece
    name: str
    dtype: str
    def __init__(self, piece: _Optional[_Union[Piece, _Mapping]] = ..., name: _Optional[str] = ..., dtype: _Optional[str] = ...) -> None: ...

class StateEnd(_message.Message):
    __slots__ = ("parts", "bytes", "elements")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    parts: int
    bytes: int
    elements: int
    def __init__(self, parts: _Optional[int] = ..., bytes: _Optional[int] = ..., elements: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("bytes", "held")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    held: float
    def __init__(self, bytes: _Optional[int] = ..., held: _Optional[float] = ...) -> None: ...

class WorkWanted(_message.Message):
    __slots__ = ("samples", "data")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    samples: int
    data: str
    def __init__(self, samples: _Optional[int] = ..., data: _Optional[str] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("lease", "start", "end")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    lease: int
    start: int
    end: int
    def __init__(self, lease: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Rest(_message.Message):
    __slots__ = ("quorum",)
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    quorum: int
    def __init__(self, quorum: _Optional[int] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("fragment", "t")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    t: int
    def __init__(self, fragment: _Optional[int] = ..., t: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("t",)
    T_FIELD_NUMBER: _ClassVar[int]
    t: int
    def __init__(self, t: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("held_out_loss", "tokens", "t")
    HELD_OUT_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    held_out_loss: float
    tokens: int
    t: int
    def __init__(self, held_out_loss: _Optional[float] = ..., tokens: _Optional[int] = ..., t: _Optional[int] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("drained", "samples_done", "tokens_done", "left")
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    samples_done: int
    tokens_done: int
    left: bool
    def __init__(self, drained: _Optional[bool] = ..., samples_done: _Optional[int] = ..., tokens_done: _Optional[int] = ..., left: _Optional[bool] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "message")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[Refused.Code]
        LAYOUT: _ClassVar[Refused.Code]
        NONFINITE: _ClassVar[Refused.Code]
        FENCED: _ClassVar[Refused.Code]
        DUPLICATE_IDENTITY: _ClassVar[Refused.Code]
        WRONG_JOB: _ClassVar[Refused.Code]
        PROTOCOL: _ClassVar[Refused.Code]
        QUARANTINED: _ClassVar[Refused.Code]
    CODE_UNSPECIFIED: Refused.Code
    LAYOUT: Refused.Code
    NONFINITE: Refused.Code
    FENCED: Refused.Code
    DUPLICATE_IDENTITY: Refused.Code
    WRONG_JOB: Refused.Code
    PROTOCOL: Refused.Code
    QUARANTINED: Refused.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: Refused.Code
    message: str
    def __init__(self, code: _Optional[_Union[Refused.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("interval_seconds", "entries")
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    entries: bool
    def __init__(self, interval_seconds: _Optional[float] = ..., entries: _Optional[bool] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("incarnation", "t", "steps", "tokens", "tokens_per_second", "loss", "held_out_loss", "step_seconds", "seeded", "done", "snapshot_t", "snapshot_error", "message", "units", "draining", "losses", "held_out_losses", "snapshot", "snapshot_copied", "ending", "token_budget", "contributions", "work_refused", "samples", "clock", "entries", "cosine", "parameters", "links", "parts")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_T_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSSES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COPIED_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    WORK_REFUSED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    t: int
    steps: int
    tokens: int
    tokens_per_second: float
    loss: float
    held_out_loss: float
    step_seconds: float
    seeded: bool
    done: bool
    snapshot_t: int
    snapshot_error: str
    message: str
    units: _containers.RepeatedCompositeFieldContainer[UnitReport]
    draining: bool
    losses: _containers.RepeatedCompositeFieldContainer[LossPoint]
    held_out_losses: _containers.RepeatedCompositeFieldContainer[LossPoint]
    snapshot: str
    snapshot_copied: bool
    ending: Ending
    token_budget: int
    contributions: int
    work_refused: int
    samples: int
    clock: float
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    cosine: float
    parameters: int
    links: _containers.RepeatedCompositeFieldContainer[Link]
    parts: _containers.RepeatedCompositeFieldContainer[PartReport]
    def __init__(self, incarnation: _Optional[bytes] = ..., t: _Optional[int] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., loss: _Optional[float] = ..., held_out_loss: _Optional[float] = ..., step_seconds: _Optional[float] = ..., seeded: _Optional[bool] = ..., done: _Optional[bool] = ..., snapshot_t: _Optional[int] = ..., snapshot_error: _Optional[str] = ..., message: _Optional[str] = ..., units: _Optional[_Iterable[_Union[UnitReport, _Mapping]]] = ..., draining: _Optional[bool] = ..., losses: _Optional[_Iterable[_Union[LossPoint, _Mapping]]] = ..., held_out_losses: _Optional[_Iterable[_Union[LossPoint, _Mapping]]] = ..., snapshot: _Optional[str] = ..., snapshot_copied: _Optional[bool] = ..., ending: _Optional[_Union[Ending, _Mapping]] = ..., token_budget: _Optional[int] = ..., contributions: _Optional[int] = ..., work_refused: _Optional[int] = ..., samples: _Optional[int] = ..., clock: _Optional[float] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., cosine: _Optional[float] = ..., parameters: _Optional[int] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartReport, _Mapping]]] = ...) -> None: ...

class PartState(_message.Message):
    __slots__ = ("state", "message", "productive_share", "accelerator_hours", "attempts")
    class AcceleratorHoursEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class AttemptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PRODUCTIVE_SHARE_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_HOURS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    state: str
    message: str
    productive_share: float
    accelerator_hours: _containers.ScalarMap[str, float]
    attempts: _containers.ScalarMap[str, int]
    def __init__(self, state: _Optional[str] = ..., message: _Optional[str] = ..., productive_share: _Optional[float] = ..., accelerator_hours: _Optional[_Mapping[str, float]] = ..., attempts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PartReport(_message.Message):
    __slots__ = ("part", "state", "seconds_since_told")
    PART_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_TOLD_FIELD_NUMBER: _ClassVar[int]
    part: str
    state: PartState
    seconds_since_told: float
    def __init__(self, part: _Optional[str] = ..., state: _Optional[_Union[PartState, _Mapping]] = ..., seconds_since_told: _Optional[float] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("cluster", "received_bytes_per_second", "sent_bytes_per_second")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    received_bytes_per_second: int
    sent_bytes_per_second: int
    def __init__(self, cluster: _Optional[str] = ..., received_bytes_per_second: _Optional[int] = ..., sent_bytes_per_second: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("number", "at", "step", "merge")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    at: float
    step: LocalStep
    merge: Merge
    def __init__(self, number: _Optional[int] = ..., at: _Optional[float] = ..., step: _Optional[_Union[LocalStep, _Mapping]] = ..., merge: _Optional[_Union[Merge, _Mapping]] = ...) -> None: ...

class LocalStep(_message.Message):
    __slots__ = ("unit", "attempt", "local_step", "step_seconds", "loss", "samples_done", "tokens_done")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    unit: str
    attempt: int
    local_step: int
    step_seconds: float
    loss: float
    samples_done: int
    tokens_done: int
    def __init__(self, unit: _Optional[str] = ..., attempt: _Optional[int] = ..., local_step: _Optional[int] = ..., step_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., samples_done: _Optional[int] = ..., tokens_done: _Optional[int] = ...) -> None: ...

class Merge(_message.Message):
    __slots__ = ("t", "fragment", "units", "loss")
    T_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    t: int
    fragment: int
    units: _containers.RepeatedScalarFieldContainer[str]
    loss: float
    def __init__(self, t: _Optional[int] = ..., fragment: _Optional[int] = ..., units: _Optional[_Iterable[str]] = ..., loss: _Optional[float] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("cause", "t", "unit", "reason")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CAUSE_UNSPECIFIED: _ClassVar[Ending.Cause]
        TOKENS: _ClassVar[Ending.Cause]
        PROGRAM: _ClassVar[Ending.Cause]
    CAUSE_UNSPECIFIED: Ending.Cause
    TOKENS: Ending.Cause
    PROGRAM: Ending.Cause
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cause: Ending.Cause
    t: int
    unit: str
    reason: str
    def __init__(self, cause: _Optional[_Union[Ending.Cause, str]] = ..., t: _Optional[int] = ..., unit: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LossPoint(_message.Message):
    __slots__ = ("t", "loss")
    T_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    t: int
    loss: float
    def __init__(self, t: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class UnitReport(_message.Message):
    __slots__ = ("unit", "attempt", "state", "steps", "tokens", "tokens_per_second", "weight", "staleness", "contributions", "seconds_since_heard", "loss", "refused", "message", "local_step", "step_seconds", "recover_seconds", "steps_per_sync", "resting_seconds", "seconds_since_alive", "pause", "pause_left", "own_data", "holds_parameters", "received_bytes", "sent_bytes", "recovery", "given", "left", "merge_share", "round_trip_seconds")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[UnitReport.State]
        JOINING: _ClassVar[UnitReport.State]
        CONTRIBUTING: _ClassVar[UnitReport.State]
        DISCONNECTED: _ClassVar[UnitReport.State]
        DONE: _ClassVar[UnitReport.State]
        REFUSED: _ClassVar[UnitReport.State]
    STATE_UNSPECIFIED: UnitReport.State
    JOINING: UnitReport.State
    CONTRIBUTING: UnitReport.State
    DISCONNECTED: UnitReport.State
    DONE: UnitReport.State
    REFUSED: UnitReport.State
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_HEARD_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECOVER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SYNC_FIELD_NUMBER: _ClassVar[int]
    RESTING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_ALIVE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_LEFT_FIELD_NUMBER: _ClassVar[int]
    OWN_DATA_FIELD_NUMBER: _ClassVar[int]
    HOLDS_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    MERGE_SHARE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    attempt: int
    state: UnitReport.State
    steps: int
    tokens: int
    tokens_per_second: float
    weight: float
    staleness: int
    contributions: int
    seconds_since_heard: float
    loss: float
    refused: _containers.ScalarMap[str, int]
    message: str
    local_step: int
    step_seconds: float
    recover_seconds: float
    steps_per_sync: int
    resting_seconds: float
    seconds_since_alive: float
    pause: str
    pause_left: float
    own_data: bool
    holds_parameters: bool
    received_bytes: int
    sent_bytes: int
    recovery: Recovery
    given: int
    left: bool
    merge_share: float
    round_trip_seconds: float
    def __init__(self, unit: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[UnitReport.State, str]] = ..., steps: _Optional[int] = ..., tokens: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., weight: _Optional[float] = ..., staleness: _Optional[int] = ..., contributions: _Optional[int] = ..., seconds_since_heard: _Optional[float] = ..., loss: _Optional[float] = ..., refused: _Optional[_Mapping[str, int]] = ..., message: _Optional[str] = ..., local_step: _Optional[int] = ..., step_seconds: _Optional[float] = ..., recover_seconds: _Optional[float] = ..., steps_per_sync: _Optional[int] = ..., resting_seconds: _Optional[float] = ..., seconds_since_alive: _Optional[float] = ..., pause: _Optional[str] = ..., pause_left: _Optional[float] = ..., own_data: _Optional[bool] = ..., holds_parameters: _Optional[bool] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ..., given: _Optional[int] = ..., left: _Optional[bool] = ..., merge_share: _Optional[float] = ..., round_trip_seconds: _Optional[float] = ...) -> None: ...
