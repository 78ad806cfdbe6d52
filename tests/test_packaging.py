"""The published package: the metadata, and a wheel and a source distribution that work in an empty environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

import headrace

ROOT: Final = Path(__file__).resolve().parents[1]
SUPPORTED: Final = ("3.11", "3.12", "3.13")
FIRST_EXAMPLE: Final = re.compile(r"```python\n(.*?)```.*?```text\n(.*?)```", re.DOTALL)


def project() -> dict[str, Any]:
    result: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return result


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its output is shown if it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_installed_version_is_the_packages() -> None:
    assert version("headrace") == headrace.__version__


@pytest.mark.parametrize("words", [["-m", "headrace", "--version"], ["-m", "headrace", "version"]])
def test_the_command_prints_the_version(words: list[str], tmp_path: Path) -> None:
    assert run(sys.executable, *words, cwd=tmp_path).startswith(f"headrace {headrace.__version__} (")


def test_the_changelog_has_a_section_of_this_version_below_what_is_unreleased() -> None:
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert titles[0] == "Unreleased" and titles[1].startswith(f"{headrace.__version__} - ")


def test_one_list_of_supported_pythons() -> None:
    classifiers = [line.rpartition(" ")[2] for line in project()["classifiers"] if ":: Python :: 3." in line]
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    assert matrix is not None
    assert classifiers == list(SUPPORTED) == re.findall(r"[\d.]+", matrix[1])
    major, minor = SUPPORTED[-1].split(".")
    assert project()["requires-python"] == f">={SUPPORTED[0]},<{major}.{int(minor) + 1}"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheel and the source distribution, built from the tracked files alone."""
    folder = tmp_path_factory.mktemp("distributions")
    checkout = folder / "checkout"
    for name in tracked():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    tools = environment(folder / "tools", sys.executable)
    run(tools, "-m", "pip", "install", "--quiet", "--no-compile", "build", cwd=folder)
    run(tools, "-m", "build", "--outdir", folder, checkout, cwd=folder)  # the wheel from the source distribution
    return folder


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def environment(folder: Path, python: str) -> Path:
    """The interpreter of a new, empty environment."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def interpreter(name: str) -> str | None:
    """Where Python `name` ("3.12") is on this machine; None if it is not, or is only a launcher of none."""
    if name == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    command = shutil.which(f"python{name}")
    if command is None or subprocess.run([command, "--version"], capture_output=True, check=False).returncode:
        return None
    return command


def runs_the_readmes_first_example(python: Path, folder: Path) -> None:
    match = FIRST_EXAMPLE.search((ROOT / "README.md").read_text("utf-8"))
    assert match is not None
    (folder / "example.py").write_text(match[1], "utf-8")
    assert run(python, "example.py", cwd=folder).strip() == match[2].strip()
    assert run(python.with_name("headrace"), "--version", cwd=folder).startswith(f"headrace {headrace.__version__} (")
    shown = "import headrace, importlib.metadata as m; print(headrace.__file__, m.version('headrace'))"
    path, installed = run(python, "-c", shown, cwd=folder).split()
    assert Path(path).is_relative_to(python.parents[1]) and installed == headrace.__version__


@pytest.mark.network
@pytest.mark.parametrize("python", SUPPORTED)
def test_the_wheel_runs_the_readmes_first_example(python: str, distributions: Path, tmp_path: Path) -> None:
    command = interpreter(python)
    if command is None:
        pytest.skip(f"no Python {python} on this machine")
    (wheel,) = distributions.glob("*.whl")
    installed = environment(tmp_path / "installed", command)
    run(installed, "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=tmp_path)
    runs_the_readmes_first_example(installed, tmp_path)


@pytest.mark.network
def test_the_source_distribution_runs_the_readmes_first_example(distributions: Path, tmp_path: Path) -> None:
    (source,) = distributions.glob("*.tar.gz")
    installed = environment(tmp_path / "installed", sys.executable)
    run(installed, "-m", "pip", "install", "--quiet", "--no-compile", source, cwd=tmp_path)
    runs_the_readmes_first_example(installed, tmp_path)


@pytest.mark.network
def test_the_wheel_holds_the_package_and_nothing_else(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked() if name.startswith("headrace/")}


@pytest.mark.network
def test_the_source_distribution_holds_what_the_tests_need(distributions: Path) -> None:
    (source,) = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    hosting = (".git", ".pre-commit")
    assert not [name for name in tracked() if not name.startswith(hosting) and name not in names]
