"""Attacks on a server, by kind: each a small function that a client process runs."""

from attacks.applications import ATTACKS as APPLICATIONS
from attacks.attacker import Attack
from attacks.commands import ATTACKS as COMMANDS
from attacks.expressions import ATTACKS as EXPRESSIONS
from attacks.operators import ATTACKS as OPERATORS
from attacks.patterns import ATTACKS as PATTERNS
from attacks.resources import ATTACKS as RESOURCES
from attacks.stages import ATTACKS as STAGES
from attacks.wire import ATTACKS as WIRE
from attacks.writes import ATTACKS as WRITES

EXTREMES: tuple[Attack, ...] = (*PATTERNS, *EXPRESSIONS, *OPERATORS, *STAGES, *WRITES, *WIRE, *COMMANDS, *RESOURCES)
"""In the order of the table."""
ALL: tuple[Attack, ...] = (*APPLICATIONS, *EXTREMES)
