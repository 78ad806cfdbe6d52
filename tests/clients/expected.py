"""The tests of each suite that Headrace fails, and those that are left out, each with its reason.

A pattern is a test's name, in which `*` stands for anything. Every test that a pattern matches must fail or be skipped,
and one must fail: a test that passes unexpectedly is an error, as is one that fails unexpectedly.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

JAVASCRIPT: Final = "`$where` and mapReduce need JavaScript, which Headrace does not run"
NO_SECONDARY: Final = "needs a secondary, or a set of three members"
ON_DEVELOPERS_DNS: Final = "asks for SRV records of the drivers' makers, which not every machine reaches"
BUSY: Final = "counts milliseconds, which a busy machine does not keep"
NO_RATE_LIMIT: Final = "sets a limit of the rate of connections, which Headrace does not have"
IN_A_CONTAINER: Final = "fails in a container, against any server"

NOT_RUN: Final[Mapping[str, Mapping[str, str]]] = {
    name: {
        "test_mypy_failures": "checks types with a version of mypy that is another",
        "test_interrupt_signal": "ends the whole run unless JavaScript keeps the server busy",
        "test_connection_pool_is_not_cleared": f"{NO_RATE_LIMIT}; its failure ends pytest with an internal error",
        "test_container_metadata": IN_A_CONTAINER,
        "test_handshake_0": IN_A_CONTAINER,
        "test_handshake_1": IN_A_CONTAINER,
        "test_handshake_2": IN_A_CONTAINER,
        "test_metadata": IN_A_CONTAINER,
        "srv-options_SRV_URI": ON_DEVELOPERS_DNS,
        "test_connection_timeout_ms_propagates_to_DNS_resolver": ON_DEVELOPERS_DNS,
        "test_dns": ON_DEVELOPERS_DNS,
        "TestErrorPropagationAfterEncounteringMultipleErrors": "sets its fail points at the port 27017",
        "test_init_disconnected_with_srv": ON_DEVELOPERS_DNS,
        "test_repr_srv_host": ON_DEVELOPERS_DNS,
        "test_service_name_from_kwargs": ON_DEVELOPERS_DNS,
        "test_srv_max_hosts_kwarg": ON_DEVELOPERS_DNS,
        "test_srv_polling": ON_DEVELOPERS_DNS,
    }
    for name in ("pymongo", "pymongo async")
} | {
    "go integration": {
        "TestCSOT_errors/timeoutMS_timeout_wraps": BUSY,
        "TestClientStress": BUSY,
        "TestCommandLoggingAndMonitoringProse/3": BUSY,
        "TestCursor_tailableAwaitData_applyRemainingTimeout": BUSY,
        "TestHandshakeProse": IN_A_CONTAINER,
        "TestInitialDNSSeedlistDiscoverySpec": ON_DEVELOPERS_DNS,
        "TestSessionsMongocryptdProse": "starts a mongocryptd",
    },
}
"""By suite: parts of names of tests that are left out (for Go: patterns of `-test.skip`), and why."""

FAILURES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "go integration": {
        JAVASCRIPT: (
            "TestErrors",
            "TestSDAMErrorHandling/after_handshake_completes/network_errors/pool_not_cleared_on_context_cancellation",
            "TestSDAMErrorHandling/after_handshake_completes/network_errors/pool_not_cleared_on_timeout_network_error",
        ),
        NO_SECONDARY: ("TestRetryableReadsProse/*/overload_errors_retried_on_a_different_replicaset_server",),
        "makes a text index of version 1; Headrace has version 3": ("TestIndexView/create_one/all_options",),
        NO_RATE_LIMIT: ("TestConnectionPoolBackpressure",),
    },
    "go unified": {
        NO_SECONDARY: (
            "TestUnifiedSpec/server-discovery-and-monitoring/tests/unified/logging-replicaset.json/Successful_heartbeat",
            "TestUnifiedSpec/server-discovery-and-monitoring/tests/unified/logging-replicaset.json/Topology_lifecycle",
            "TestUnifiedSpec/server-discovery-*/replicaset-emit-topology-changed-before-close.json/Topology_lifecycle",
            "TestUnifiedSpec/server-selection/tests/logging/replica-set.json/A_successful_operation",
            "TestUnifiedSpec/server-selection/*/Server_selection_fails_due_to_unsatisfiable_read_preference",
            "TestUnifiedSpec/transactions/tests/unified/read-pref.json/secondary_readPreference",
            "TestUnifiedSpec/transactions/tests/unified/*/readPreference_inherited_from_*",
            "TestUnifiedSpec/transactions/tests/unified/*/startTransaction_overrides_readPreference",
        ),
    },
    "motor": {
        NO_SECONDARY: ("*test_examples.TestExamples.test_causal_consistency",),
        "encrypts in the client, for which libraries are missing": (
            "*test_asyncio_collection.TestAsyncIOCollection.test_async_create_encrypted_collection",
            "*test_asyncio_collection.TestAsyncIOCollection.test_async_encrypt_expression",
            "*test_asyncio_cursor.TestAsyncIOCursor.test_generate_keys",
            "*test_examples.TestQueryableEncryptionDocsExample.test_queryable_encryption",
        ),
    },
    "pymongo": {
        JAVASCRIPT: (
            "test.test_client.TestClient.test_socket_timeout",
            "test.test_cursor.TestCursor.test_to_list_csot_applied",
            "test.test_cursor.TestCursor.test_where",
            "test.test_pooling.TestPoolMaxSize.test_max_pool_size",
            "test.test_pooling.TestPoolMaxSize.test_max_pool_size_none",
        ),
        NO_SECONDARY: (
            "test.test_connections_survive_primary_stepdown_spec.*.test_get_more_iteration",
            "test.test_discovery_and_monitoring.*.test_Rediscover_quickly_after_replSetStepDown",
            "test.test_discovery_and_monitoring.TestUnified*Replicaset*.test_Topology_lifecycle",
            "test.test_server_selection_logging.TestServerSelectionLoggingReplicaSet.test_A_successful_operation",
            "test.test_server_selection_logging.*.test_Server_selection_fails_due_to_unsatisfiable_read_preference",
            "test.test_transactions_unified.TestUnifiedReadPref.test_secondary_readPreference",
            "test.test_transactions_unified.TestUnifiedRunCommand.test_run_command_fails_with_*secondary_read_*",
        ),
    },
    "pymongo, secure": {JAVASCRIPT: ("test.*test_auth.TestSCRAM.test_scram_threaded",)},
    "pymongo async": {
        JAVASCRIPT: (
            "test.asynchronous.test_async_cancellation.TestAsyncCancellation.test_async_cancellation_aborts_transaction",
            "test.asynchronous.test_async_cancellation.TestAsyncCancellation.test_async_cancellation_closes_connection",
            "test.asynchronous.test_async_loop_unblocked.TestClientLoopUnblocked.test_client_does_not_block_loop",
            "test.asynchronous.test_client.TestClient.test_socket_timeout",
            "test.asynchronous.test_concurrency.TestAsyncConcurrency.test_concurrency",
            "test.asynchronous.test_cursor.TestCursor.test_to_list_csot_applied",
            "test.asynchronous.test_cursor.TestCursor.test_where",
            "test.asynchronous.test_pooling.TestPoolMaxSize.test_max_pool_size",
            "test.asynchronous.test_pooling.TestPoolMaxSize.test_max_pool_size_none",
        ),
        NO_SECONDARY: (
            "test.asynchronous.test_connections_survive_primary_stepdown_spec.*.test_get_more_iteration",
            "test.asynchronous.test_discovery_and_monitoring.*.test_Rediscover_quickly_after_replSetStepDown",
            "test.asynchronous.test_discovery_and_monitoring.TestUnified*Replicaset*.test_Topology_lifecycle",
            "test.asynchronous.test_server_selection_logging.TestServerSelectionLoggingReplicaSet.test_A_successful_operation",
            "test.asynchronous.test_server_selection_logging.*.test_Server_selection_fails_due_to_unsatisfiable_read_preference",
            "test.asynchronous.test_transactions_unified.TestUnifiedReadPref.test_secondary_readPreference",
            "test.asynchronous.test_transactions_unified.TestUnifiedRunCommand.test_run_command_fails_with_*secondary_read_*",
        ),
    },
}
"""By suite, or by `suite, plain` and `suite, secure`: reasons, each with its patterns."""


def expected(name: str, secure: bool) -> list[str]:
    """The patterns of the tests that a run of a suite fails."""
    runs = (name, f"{name}, {'secure' if secure else 'plain'}")
    return [pattern for run in runs for patterns in FAILURES.get(run, {}).values() for pattern in patterns]


def differences(outcomes: Mapping[str, str], patterns: list[str]) -> tuple[list[str], list[str]]:
    """The failures that no pattern expects, and the patterns that expect what passed, or match no failure."""

    def names(outcome: str) -> list[str]:
        return [name for name, its in outcomes.items() if its == outcome]

    new = [name for name in names("failed") if not any(_matches(name, pattern) for pattern in patterns)]
    cured = [
        pattern
        for pattern in patterns
        if any(_matches(name, pattern) for name in names("passed"))
        or not any(_matches(name, pattern) for name in names("failed"))
    ]
    return new, cured


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))
