"""The model of a job's file: bad input is refused where it is written, with file, line, key and what is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.spark.jobs.job_file import JobError, line_of, parse_job, read_job
from headrace.spark.jobs.job_model import TABLES, LookupTable, OnLag, json_schema
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.sink_model import Upkeep
from headrace.spark.sinks.sink_options import KINDS

GIVEN = """\
checkpoint = "notes"
NAME
[source]
uri = "mongodb://localhost"
database = "shop"
collection = "orders"
startingPosition = "snapshot"
[spark]
cores = 2
[[sink]]
kind = "changes"
path = "changes"
[[sink]]
kind = "mirror"
path = "mirror"
"""
LONG = "x" * 5000


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        *[
            ('path = "mirror"', f'path = "mirror"\nbuckets = {value}', 16,
             f"the sink 'mirror': 'buckets' is a whole number from 0 to 1000, not {shown}")
            for value, shown in [('"4"', "'4'"), ("1.5", "1.5"), ("true", "True"), ("-4", "-4"), ("1000000", "1000000")]
        ],
        ('"notes"', r'"no\u0000tes"', 1, "'checkpoint' has a NUL character, which no path can have"),
        ('"notes"', f'"{LONG}"', 1,
         "'checkpoint' has 5000 bytes: a path has at most 4096, and each name in it at most 255"),
        ('path = "changes"', r'path = "a\u0000b"', 12, "the sink 'changes': 'path' has a NUL character"),
        ('path = "changes"', f'path = "{LONG}"', 12, "the sink 'changes': 'path' has 5000 bytes"),
        ('"notes"', '"~/notes"', 1, "'checkpoint' is taken as it is written, and '~/notes' has a '~' or '$'"),
        ('path = "changes"', 'path = "$HOME/x"', 12, "'path' is taken as it is written, and '$HOME/x' has"),
        ("[spark]", 'fullDocument = "updateLokup"\n[spark]', 8,
         "[source]: 'fullDocument' is one of default, updateLookup, whenAvailable, required, not 'updateLokup'; "
         "did you mean 'updateLookup'?"),
        ('"snapshot"', '"2099-01-01T00:00:00Z"', 7, "'startingPosition' is in the future: 2099-01-01T00:00:00Z"),
        ('"snapshot"', '"8263515EAC00000002"', 7, "'startingPosition' has a resume token that is damaged or cut off"),
        ("[spark]", "archive = 5\n[spark]", 8, "[source]: 'archive' is a path, not 5"),
        ("cores = 2", 'conf."spark.x" = [1]', 9, "[spark]: 'conf' is a table of Spark's properties, each one"),
        ("NAME", 'name = ""', 2, "'name' is a line of text of at most 200 characters, not ''"),
        ("NAME", "name = 5", 2, "'name' is a line of text of at most 200 characters, not 5"),
        ("NAME", r'name = "a\nb"', 2, r"'name' is a line of text of at most 200 characters, not 'a\nb'"),
        ("[spark]", "partitions = 100000\n[spark]", 8,
         "[source]: 'partitions' is a whole number from 1 to 1000, not '100000'"),
        ("[spark]", '[mask]\nomit = ["a..b"]\n[spark]', 9, "[mask]: 'omit' has 'a..b', which is no path of a field"),
        ("[spark]", '[mask]\nomit = ["a.*"]\n[spark]', 9, "[mask]: 'omit' has 'a.*', in which '*' is no wildcard"),
        ("[spark]", '[mask]\nredact = ["a.$.b"]\n[spark]', 9, "[mask]: 'redact' has 'a.$.b', in which '$' is no"),
        ("[spark]", '[mask]\nnull = ["a[0]"]\n[spark]', 9, "[mask]: 'null' has 'a[0]', in which '[' is no wildcard"),
        ("[spark]", '[mask]\nnull = ["a\\u0000"]\n[spark]', 9, "no field's name has a NUL character"),
        ('"notes"', '"s3:/bucket/notes"', 1,
         "'checkpoint' is a path, or a URL with two slashes after 's3:', not 's3:/bucket/notes'"),
        ('path = "mirror"', 'path = "file:/lake/x"', 15, "'path' is a path, or a URL with two slashes after 'file:'"),
        *[
            ('path = "mirror"', f'path = "s3://b/{name}"', 15, "a URL, and has no folder '.', '..' or without")
            for name in ("a/../b", "./a", "a//b")
        ],
        *[
            ('"shop"', f'"{name}"', 5, "[source]: 'database' is the name of a database, of at most 63 bytes, without")
            for name in ("a.b", "a b", r"a\u0000", "a/b", "a$b", "x" * 64, "é" * 32)
        ],
        *[
            ('"orders"', f'"{name}"', 6, "[source]: 'collection' is the name of a collection, of at most 253 bytes")
            for name in (r"a\u0000", ".a", "a.", "$x", "x" * 254)
        ],
        ('kind = "mirror"\npath = "mirror"', 'kind = "mongodb"\nuri = "mongodb://h"\ndatabase = "a.b"', 16,
         "the sink 'mongodb': 'database' is the name of a database, of at most 63 bytes"),
        ('kind = "mirror"\npath = "mirror"', 'kind = "mongodb"\nuri = "mongodb://h"\ncollection = "$x"', 16,
         "the sink 'mongodb': 'collection' is the name of a collection, of at most 253 bytes"),
        ("[spark]", "PARTITIONS = 0\n[spark]", 8, "[source]: 'partitions' is a whole number from 1 to 1000, not '0'"),
        ("[spark]", 'stageInto = "x"\n[spark]', 8, "[source]: 'stageInto' is set by the job itself: leave it out"),
        ("[spark]", 'stageslots = "4/0"\n[spark]', 8, "[source]: 'stageSlots' is set by the job itself: leave it out"),
        ("[spark]", 'mask.omit = ["a"]\n[mask]\nomit = ["b"]\n[spark]', 8,
         "[source]: 'mask' goes with no table [mask]: leave one out"),
        ("[spark]", '[trigger]\navailableNow = true\nevery = "1 second"\n[spark]', 10,
         "[trigger]: 'every' has no meaning with availableNow: leave one out"),
        ('kind = "changes"\npath = "changes"', 'kind = "own"\nfactory = "no_such_module:sink"', 12,
         "the sink 'own': 'factory' 'no_such_module:sink' is not module:function of something that can be imported: "
         "No module named 'no_such_module'"),
        ('kind = "changes"\npath = "changes"', 'kind = "own"\nfactory = "os.path:no_such_name"', 12,
         "has no attribute 'no_such_name'"),
        ('kind = "changes"\npath = "changes"', 'kind = "own"\nfactory = "os.path:sep"', 12,
         "'os.path:sep' is not module:function: it is no function, but str"),
        ('path = "mirror"', 'path = "changes/a"', 15,
         "the path of the sink 1, changes, and the path of the sink 2, mirror, have paths of which one is inside"),
        ('path = "changes"', 'path = "notes"', 12, "checkpoint and the path of the sink 1, changes, have one path"),
        ('"notes"', '"s3://b/notes"', 1, "checkpoint is a folder on a mounted file system, not the URL"),
        ("NAME", f'report_seconds = "{LONG}"', 2, f"above 0, not {LONG[:99]!r}"[:-1] + "... (5002 characters)"),
        ("[spark]", f'documents = "{LONG}"\n[spark]', 8, f"not {LONG[:99]!r}"[:-1] + "... (5002 characters)"),
        ("NAME", 'errors = "deadletter"', 2, "errors = 'deadletter' and deadletter, the path of a table, go together"),
        ("NAME", 'deadletter = "d"', 2, "errors = 'deadletter' and deadletter, the path of a table, go together"),
        ('startingPosition = "snapshot"', 'startingPosition = "latest"', 7, "set it to 'snapshot'"),
        ('startingPosition = "snapshot"', "", 3, "set it to 'snapshot'"),
        ("[spark]", 'fulldocument = "updateLookup"\n[spark]', 8, "leave it out, such a sink needs no documents"),
        ("[spark]", 'documentSchema = "a int"\n[spark]', 8,
         "documents 'columns' and the option 'documentSchema' go together"),
        ("[spark]", 'pipeline = "{"\n[spark]', 8, "the option 'pipeline' is not JSON"),
        ("[spark]", '[pipeline]\nstages = "{"\n[spark]', 9, "the pipeline's stages are not JSON"),
        ("[spark]", '[pipeline]\nstages = [{"$group" = {"_id" = 1}}]\n[spark]', 9, "$group makes documents"),
        ("[spark]", '[pipeline]\nwindow = "1 hour"\n[spark]', 9, "'window' is for $group, and no stage is one"),
        ("[spark]", '[pipeline]\ntables.regions = {}\n[spark]', 9, "[pipeline.tables.regions] needs 'path'"),
        ("[spark]", '[mask]\nhash = ["a"]\n[spark]', 8, "mask: hash needs key"),
        ("[spark]", '[mask]\nomit = ["_id"]\n[spark]', 8, "mask: _id is in the key of a document"),
        ("[spark]", '[metrics]\naddress = "a b"\n[spark]', 9,
         "[metrics]: 'address' is an IP address, or the name of a host, not 'a b'"),
        ("[spark]", 'replicaSetId = "abc"\n[spark]', 8, "'replicaSetId' is 24 hexadecimal digits, or '-', for each"),
        *[
            ("[spark]", f"{key} = {value}\n[spark]", 8, f"[source]: '{key}'{message}")
            for key, value, message in [
                ("asOf", '"2026-01-01T00:00:00Z"', " is for batch reads, and a job reads a stream: leave it out"),
                ("endingPosition", '"latest"', " is for batch reads, and a job reads a stream: leave it out"),
                ("archive", '"http://h/x"', " is a table: no table can be at 'http://h/x': Headrace knows paths and "),
            ]
        ],
        ("[spark]", 'columns = "token, tokn"\n[spark]', 8,
         "the option 'columns' has 'tokn', which is no column; there are token, clusterTime"),
        ("[spark]", "columns = [1]\n[spark]", 8, "[source]: 'columns' is a text, not [1]"),
        ('collection = "orders"', "collections = [1]\n", 6, "the option 'collections' is an array of names"),
        ('"mongodb://localhost"', '"abc"', 4, "the option 'uri' is no connection string that begins with mongodb://"),
        ('"mongodb://localhost"', '"env:NO_SUCH_URI"', 4, "the environment variable NO_SUCH_URI, which is to hold"),
        ("[spark]", '[mask]\nomit = ["a", "a"]\n[spark]', 8, "mask: a is masked twice"),
        ('collection = "orders"', 'collection = "orders"\ndocuments = "columns"', 7,
         "documents 'columns' and the option 'documentSchema' go together"),
        *[
            ("[spark]", f'[pipeline]\nstages = "[]"\nwindow = "1 hour"\n{key} = "abc"\n[spark]', 11,
             f"[pipeline]: '{key}' is an interval such as '1 second'")
            for key in ("delay", "slide")
        ],
        ("[spark]", '[pipeline]\nwindow = "abc"\n[spark]', 9, "[pipeline]: 'window' is an interval such as"),
        ("[spark]", '[pipeline]\nslide = "1 hour"\n[spark]', 9, "[pipeline]: 'slide' has no meaning without 'window'"),
        ("[spark]", '[pipeline]\ndate = "$x"\n[spark]', 9, "[pipeline]: 'date' has no meaning without 'window'"),
        ("[spark]", '[pipeline]\ndelay = "1 hour"\n[spark]', 9, "[pipeline]: 'delay' is for $group, and no stage is"),
        ("[spark]", '[pipeline.tables.x]\nformat = "delta"\npath = "http://h"\n[spark]', 10, "no table can be at '"),
        ("[spark]", '[pipeline.tables.x]\npath = "x"\noptions.a = [1]\n[spark]', 10,
         "'options' is a table of options, each one value"),
        *[
            ("[spark]", f"[metrics]\naddress = {json.dumps(address)}\n[spark]", 9,
             "[metrics]: 'address' is an IP address, or the name of a host")
            for address in (".", "env:X", "a..b", "-a", "x" * 254)
        ],
        ("[spark]", '[on_lag]\nseconds = 5\nrun = "a\\u0000"\n[spark]', 10, "[on_lag]: 'run' has a NUL character"),
        ("[spark]", '[on_lag]\nseconds = 5\nrun = [""]\n[spark]', 10, "[on_lag]: 'run' names no command"),
        *[
            ('path = "mirror"', f'path = "m"\nschema = "infer"\n{key} = {value}', 17, f"the sink 'mirror': {key}: ")
            for key, value in [("partition", '"day("'), ("flatten", '"a..b"'), ("rename", '{"a..b" = "x"}')]
        ],
        ('path = "mirror"', 'path = "mirror"\nschema = "a b"', 16, "the sink 'mirror': schema: 'a b': 'b' is no type"),
        ('path = "mirror"', 'path = "mirror"\ncluster = "a"', 16,
         "the sink 'mirror': cluster: a table with typed columns needs schema"),
        ('path = "mirror"', 'path = "mirror"\nusing = "delta"', 16, "the sink 'mirror': using, one of delta, iceberg"),
        ('path = "mirror"', 'table = "lake.t"\nusing = "orc"', 16, "is the format of tables that are made in Spark's"),
        ('path = "mirror"', 'table = "lake.t"\nbuckets = 4', 16, "it has no buckets"),
        ('path = "mirror"', 'table = "parquet"\npath = "m"\nupkeep = true', 17, "upkeep is for Delta tables in a path"),
        ('path = "mirror"', 'path = "m"\n[sink.upkeep]\nkeep = "1 day"', 17, "keep is for changes and history"),
        ('path = "mirror"', 'path = "http://h"', 15, "the sink 'mirror': 'path': no table can be at 'http://h'"),
        ('path = "mirror"', 'path = "s3://b/x"\ntable = "parquet"', 15, "needs a path that is mounted, not 's3://"),
        *[
            ('kind = "mirror"\npath = "mirror"',
             f'kind = "kafka"\nservers = {servers}\ntopic = {topic}\nposition = {at}', line, message)
            for servers, topic, at, line, message in [
                ('"h"', '"t"', '"p"', 15, "'servers' are brokers as 'host:port', with commas between them, not 'h'"),
                ('"h:1"', '"a b"', '"p"', 16, "'topic' has letters, digits"),
                ('"h:1"', '"t"', '"s3://b"', 17, "'position' is a file of this machine, not a URL"),
                ('"h:1"', '"t"', '"p"\nkafka."bootstrap.servers" = "x"', 18, "the brokers are the option 'servers'"),
            ]
        ],
        *[
            ('kind = "mirror"\npath = "mirror"', f'kind = "{kind}"\n{more}uri = "{uri}"', line, message)
            for kind, more, line, uri, message in [
                ("mongodb", "", 15, "abc", "the sink 'mongodb': 'uri' is no connection string that begins with"),
                ("mongodb", "", 15, "env:NO_SUCH_URI", "the environment variable NO_SUCH_URI, which is to hold"),
                ("sql", 'table = "t"\n', 16, "abc", "the sink 'sql': 'uri' is a URL such as postgresql+psycopg://h/db"),
                ("sql", 'table = "t"\n', 16, "sqlite:///", "the sink 'sql': 'uri' names no file"),
                ("sql", 'table = "t"\n', 16, "env:NO_SUCH_URI", "the environment variable NO_SUCH_URI, which is to"),
                ("sql", 'table = "a\\u0000"\n', 15, "sqlite:///x", "the sink 'sql': 'table' is a line of text"),
            ]
        ],
        ('collection = "orders"', "", 12, "{collection}"),
        ('kind = "mirror"', 'kind = "miror"', 14, "not 'miror'; did you mean 'mirror'?"),
        ("cores = 2", "core = 2", 9, "[spark] has no 'core'; it has conf, cores, memory, quick; did you mean 'cores'?"),
        ('database = "shop"', 'databse = "shop"', 5, "[source] has no 'databse'; did you mean 'database'?"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_its_line_and_what_is_allowed(
    old: str, new: str, line: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GIVEN.replace(old, new, 1).replace("NAME", "")
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(JobError) as caught:
        read_job(file)
    assert str(caught.value).startswith(f"{file}:{line}: ") and message in str(caught.value)
    for action in ("check", "explain", "run"):
        assert main(["pipeline", action, str(file)]) == 1
        assert capsys.readouterr().err == f"headrace: {caught.value}\n"


@pytest.mark.parametrize("text", ["{}", "a: 1", "checkpoint = "])
def test_a_file_that_is_not_toml_says_so(text: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(JobError, match=r"job\.toml:1: this is not TOML: "):
        read_job(file)
    file.write_bytes(b"\xff")
    with pytest.raises(JobError, match="this is not TOML: it is not text in UTF-8"):
        read_job(file)


@pytest.mark.parametrize("model", [*TABLES.values(), LookupTable, Upkeep, *(kind.model for kind in KINDS.values())])
def test_every_key_has_a_meaning_and_an_example_that_is_allowed(model: Any) -> None:
    for name, field in model.keys().items():
        if name == "kind":
            continue
        assert field.description and len(field.examples) == 1
        needed = {
            each: other.examples[0] for each, other in model.keys().items() if each != "kind" and other.is_required()
        }
        needed |= {"seconds": 60} if model is OnLag else {}
        given = needed | {name: field.examples[0]}
        kind = next((kind for kind, made in KINDS.items() if made.model is model), None)
        model.of(given | ({"kind": kind} if kind else {}), "the table")


def test_a_value_that_spark_would_convert_is_named_as_it_is_given(tmp_path: Path) -> None:
    source = {"URI": "mongodb://h", "DataBase": "d", "collection": "c", "maxrowspertrigger": "500"}
    job = {"checkpoint": "c", "source": source, "sink": [{"kind": "changes", "path": "p"}]}
    assert parse_job(job, "job", tmp_path).options.rows_max == 500
    for wrong in (1.5, True, -1, "0", "many", [1]):
        with pytest.raises(FileError, match="'maxRowsPerTrigger' is a whole number from 1"):
            parse_job(job | {"source": source | {"maxrowspertrigger": wrong}}, "job", tmp_path)


def test_the_line_of_a_key_is_that_where_it_is_written() -> None:
    text = 'a = """\nb = 1\n"""\nb = 2\n[t.u]\n"x y" = 1\nd.e = 2\n[[s]]\nk = 1\n[s.in]\nz = 1\n[[s]]\nk = 2\n'
    lines = {
        ("b",): 4, ("t", "u", "x y"): 6, ("t", "u", "d", "e"): 7, ("s", 0, "k"): 9, ("s", 0, "in", "z"): 11,
        ("s", 1, "k"): 13, ("s", 1, "none"): 12, ("none",): 1,
    }  # fmt: skip
    assert {place: line_of(text, place) for place in lines} == lines


def test_editors_get_the_schema_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json_schema()
    assert schema["properties"]["source"]["$ref"] == "#/$defs/Source"
    assert schema["$defs"]["Source"]["properties"]["fullDocument"]["enum"][1] == "updateLookup"
    assert schema["$defs"]["MirrorKeys"]["properties"]["buckets"]["maximum"] == 1000


def test_only_the_pipeline_imports_pydantic() -> None:
    program = (
        "import sys, headrace, headrace.cli.main, headrace.cli.serve, headrace.server.server, "
        "headrace.spark.source.data_source; print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
