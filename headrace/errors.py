"""The errors of commands: `CommandError` or `Interrupted`, and MongoDB's error codes with their names.

Rule: a client's mistake is raised as a `CommandError` with MongoDB's number, the end of a command from outside as
`Interrupted`. Any other exception that escapes from the core is a bug and stops the present operation.

Source of the names: MongoDB's documentation and the drivers' specifications.
"""

from __future__ import annotations

from typing import Any

CODE_NAMES: dict[int, str] = {
    1: "InternalError",
    2: "BadValue",
    4: "NoSuchKey",
    5: "GraphContainsCycle",
    6: "HostUnreachable",
    7: "HostNotFound",
    8: "UnknownError",
    9: "FailedToParse",
    10: "CannotMutateObject",
    11: "UserNotFound",
    12: "UnsupportedFormat",
    13: "Unauthorized",
    14: "TypeMismatch",
    15: "Overflow",
    16: "InvalidLength",
    17: "ProtocolError",
    18: "AuthenticationFailed",
    19: "CannotReuseObject",
    20: "IllegalOperation",
    21: "EmptyArrayOperation",
    22: "InvalidBSON",
    23: "AlreadyInitialized",
    26: "NamespaceNotFound",
    27: "IndexNotFound",
    28: "PathNotViable",
    29: "NonExistentPath",
    31: "RoleNotFound",
    34: "CannotBackfillArray",
    37: "FileRenameFailed",
    40: "ConflictingUpdateOperators",
    43: "CursorNotFound",
    47: "NoMatchingDocument",
    48: "NamespaceExists",
    49: "InvalidRoleModification",
    50: "MaxTimeMSExpired",
    51: "ManualInterventionRequired",
    52: "DollarPrefixedFieldName",
    53: "InvalidIdField",
    54: "NotSingleValueField",
    55: "InvalidDBRef",
    56: "EmptyFieldName",
    57: "DottedFieldName",
    59: "CommandNotFound",
    61: "ShardKeyNotFound",
    62: "OplogOperationUnsupported",
    63: "StaleShardVersion",
    64: "WriteConcernFailed",
    66: "ImmutableField",
    67: "CannotCreateIndex",
    68: "IndexAlreadyExists",
    70: "ShardNotFound",
    72: "InvalidOptions",
    73: "InvalidNamespace",
    76: "NoReplicationEnabled",
    79: "UnknownReplWriteConcern",
    85: "IndexOptionsConflict",
    86: "IndexKeySpecsConflict",
    89: "NetworkTimeout",
    91: "ShutdownInProgress",
    93: "InvalidReplicaSetConfig",
    94: "NotYetInitialized",
    95: "NotSecondary",
    96: "OperationFailed",
    98: "DBPathInUse",
    100: "UnsatisfiableWriteConcern",
    103: "NewReplicaSetConfigurationIncompatible",
    104: "NodeNotElectable",
    105: "IncompatibleShardingMetadata",
    111: "NotExactValueField",
    112: "WriteConflict",
    115: "CommandNotSupported",
    116: "DocTooLargeForCapped",
    117: "ConflictingOperationInProgress",
    121: "DocumentValidationFailure",
    123: "NotAReplicaSet",
    125: "CommandFailed",
    133: "FailedToSatisfyReadPreference",
    136: "CappedPositionLost",
    140: "InvalidSSLConfiguration",
    141: "SSLHandshakeFailed",
    143: "CursorInUse",
    145: "PooledConnectionsDropped",
    146: "ExceededMemoryLimit",
    150: "StaleEpoch",
    159: "DurationOverflow",
    161: "IncompatibleCollationVersion",
    162: "CollectionIsEmpty",
    165: "ViewDepthLimitExceeded",
    166: "CommandNotSupportedOnView",
    167: "OptionNotSupportedOnView",
    168: "InvalidPipelineOperator",
    169: "CommandOnShardedViewNotSupportedOnMongod",
    170: "TooManyMatchingDocuments",
    171: "CannotIndexParallelArrays",
    175: "QueryPlanKilled",
    181: "AmbiguousIndexKeyPattern",
    182: "InvalidViewDefinition",
    183: "ClientMetadataMissingField",
    184: "ClientMetadataAppNameTooLarge",
    185: "ClientMetadataDocumentTooLarge",
    186: "ClientMetadataCannotBeMutated",
    187: "LinearizableReadConcernError",
    189: "PrimarySteppedDown",
    195: "ViewPipelineMaxSizeExceeded",
    197: "InvalidIndexSpecificationOption",
    201: "CannotBuildIndexKeys",
    206: "NoSuchSession",
    207: "InvalidUUID",
    211: "KeyNotFound",
    213: "DuplicateSession",
    215: "DatabaseDropPending",
    217: "IncompleteTransactionHistory",
    218: "UpdateOperationFailed",
    221: "IndexModified",
    222: "CloseChangeStream",
    223: "IllegalOpMsgFlag",
    224: "QueryFeatureNotAllowed",
    225: "TransactionTooOld",
    226: "AtomicityFailure",
    228: "SessionTransferIncomplete",
    229: "MustDowngrade",
    232: "MaxSubPipelineDepthExceeded",
    234: "RetryChangeStream",
    237: "CursorKilled",
    238: "NotImplemented",
    239: "SnapshotTooOld",
    241: "ConversionFailure",
    242: "CannotCreateCollection",
    246: "SnapshotUnavailable",
    251: "NoSuchTransaction",
    256: "TransactionCommitted",
    257: "TransactionTooLarge",
    260: "InvalidResumeToken",
    261: "TooManyLogicalSessions",
    262: "ExceededTimeLimit",
    263: "OperationNotSupportedInTransaction",
    266: "FailPointSetFailed",
    267: "PreparedTransactionInProgress",
    268: "CannotBackup",
    276: "IndexBuildAborted",
    278: "UnsatisfiableCommitQuorum",
    279: "ClientDisconnect",
    280: "ChangeStreamFatalError",
    285: "IndexBuildAlreadyInProgress",
    286: "ChangeStreamHistoryLost",
    290: "TransactionExceededLifetimeLimitSeconds",
    291: "NoQueryExecutionPlans",
    292: "QueryExceededMemoryLimitNoDiskUseAllowed",
    301: "DataCorruptionDetected",
    322: "APIVersionError",
    323: "APIStrictError",
    324: "APIDeprecationError",
    334: "MechanismUnavailable",
    346: "ChangeStreamInvalidated",
    347: "APIMismatchError",
    352: "UnsupportedOpQueryCommand",
    357: "InvalidBSONType",
    359: "CannotConvertIndexToUnique",
    361: "CollectionUUIDMismatch",
    365: "TemporarilyUnavailable",
    371: "UserWritesBlocked",
    376: "ChangeStreamNotEnabled",
    378: "NonConformantBSON",
    391: "ReauthenticationRequired",
    411: "QueryRejectedBySettings",
    5446: "Location5446",
    9001: "SocketException",
    10003: "CannotGrowDocumentInCappedNamespace",
    10058: "Location10058",
    10107: "NotWritablePrimary",
    10334: "BSONObjectTooLarge",
    11000: "DuplicateKey",
    11600: "InterruptedAtShutdown",
    11601: "Interrupted",
    11602: "InterruptedDueToReplStateChange",
    13113: "MergeStageNoMatchingDocument",
    13297: "DatabaseDifferCase",
    13388: "StaleConfig",
    13435: "NotPrimaryNoSecondaryOk",
    13436: "NotPrimaryOrSecondary",
    14031: "OutOfDiskSpace",
    31082: "SearchNotEnabled",
    31249: "Location31249",
}


def code_name(code: int) -> str:
    """Return the name that MongoDB sends with `code`: the table's, or `Location<code>` for a code without a name."""
    return CODE_NAMES.get(code, f"Location{code}")


class AnsweredError(Exception):
    """An error with MongoDB's number that is sent to the client. `extra` has further fields of the reply."""

    def __init__(
        self, code: int, message: str, *, labels: tuple[str, ...] = (), extra: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.labels = labels
        self.extra = extra or {}

    @property
    def code_name(self) -> str:
        """MongoDB's name of the code, such as `BadValue`, or `Location40415` for a code without a name."""
        return code_name(self.code)


class CommandError(AnsweredError):
    """A mistake of the client. Code that runs a part of a command (a statement, a constant, a trial) may catch it."""

    def behind(self, prefix: str) -> CommandError:
        """Return the same error with `prefix` before its message: an error of a part becomes an error of the whole."""
        return CommandError(self.code, prefix + self.message, labels=self.labels, extra=self.extra)


class Interrupted(AnsweredError):
    """Ends a whole command, not only its running part: its time is up, it was killed, or its client has left.

    It is not a `CommandError`, so that no handler takes it for the error of a part. Code that cleans up catches both
    (`AnsweredError`). The finished part of the command stays done.
    """


class HandedOver(BaseException):
    """Unwinds a command that another process runs from its beginning. The engine waits for that process's answer."""

    def __init__(self, call: Any = None) -> None:
        """`call`: an `execution.reader_calls.ReaderCall`; None: the shell makes one, or a write begins again."""
        super().__init__()
        self.call = call


def reason_of(error: Exception) -> str:
    """Return the message of an error for a person. For an error of the operating system: the file and the reason."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
