"""Many jobs from one table: matrices, files and copies."""

import os
from glob import glob
from itertools import product, repeat
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConfigError
from taskscaler._jobsfile import JobsFile, _expansion, read_jobs_file
from taskscaler._jobsfile._for_each import TooManyToLookAt, files_for
from taskscaler._jobsfile._matrix import Combinations, Matrix, Values, filled_in

FLEET = '[autoscaler]\nplugin = "local"\n'

STRANGE = '"b", which is not a key of the matrix'

keys = st.sampled_from("abcd")
values = st.sampled_from("xyz")
axes = st.dictionaries(keys, st.lists(values, min_size=1, unique=True), max_size=3)
entries = st.lists(st.dictionaries(keys, values, min_size=1), max_size=4)


def read(directory: Path, text: str) -> JobsFile:
    """Write a file and read it."""
    path = directory / "jobs.toml"
    path.write_text(FLEET + dedent(text))
    return read_jobs_file(path)


def wrong(directory: Path, text: str) -> list[str]:
    """All that is wrong with a file."""
    with pytest.raises(ConfigError) as caught:
        read(directory, text)
    return [f"{problem.path}: {problem.found}" for problem in caught.value.problems]


def github_s(axes: dict[str, list[str]], include: list[Values], exclude: list[Values]) -> list[Values]:
    """Combine as GitHub's documentation says, one step after the other."""
    originals = [dict(zip(axes, each, strict=True)) for each in product(*axes.values())] if axes else []
    originals = [each for each in originals if not any(out.items() <= each.items() for out in exclude)]
    combinations, added = [dict(each) for each in originals], []
    for more in include:
        fitting = [
            number
            for number, each in enumerate(originals)
            if all(each[key] == value for key, value in more.items() if key in axes)
        ]
        for number in fitting:
            combinations[number] |= more
        if not fitting:
            added.append(dict(more))
    return [*combinations, *added]


@given(axes, entries, entries)
def test_a_matrix_is_github_s(axes: dict[str, list[str]], include: list[Values], exclude: list[Values]) -> None:
    """In the order of the product, what was added last; and no larger than what is known before one is made."""
    exclude = [kept for each in exclude if (kept := {key: value for key, value in each.items() if key in axes})]
    matrix = Matrix(axes=axes, include=include, exclude=exclude)
    combinations = Combinations(matrix)
    assert [*combinations] == github_s(axes, include, exclude)
    assert len(combinations) <= matrix.bound


def test_values_stand_in_commands_and_variables(tmp_path: Path) -> None:
    """Under their keys; where a combination has none, there is nothing. The shell's own braces stay as they are."""
    (first, *_, last) = read(
        tmp_path,
        """
        [[jobs]]
        name = "test"
        script = "echo ${{ matrix.size }} ${{matrix.lang}} ${HOME} ${{x}}"
        env = { FIXED = "1" }
        matrix = { size = [1, 2.5], lang = ["a", "b"], include = [{ size = 9, fast = true }] }
        """,
    ).jobs
    assert (first.spec.script, last.spec.script) == ("echo 1 a ${HOME} ${{x}}", "echo 9  ${HOME} ${{x}}")
    assert {"size": "1", "lang": "a", "FIXED": "1"}.items() <= first.spec.env.items()
    assert last.spec.env["fast"] == "true"
    assert "lang" not in last.spec.env


@given(st.text(), st.dictionaries(st.sampled_from(["a", "b"]), st.text()))
def test_only_references_are_replaced(text: str, values: Values) -> None:
    """Once: a value that looks like a reference is a value."""
    assert filled_in(text.replace("${{", ""), values) == text.replace("${{", "")
    assert filled_in("<${{ matrix.a }}>", values) == f"<{values.get('a', '')}>"


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("matrix = { size = [1, 2], lang = ['c++', 'go'] }", ["a-1-c__", "a-1-go", "a-2-c__", "a-2-go"]),
        ("matrix = { v = ['c+', 'c#'] }", ["a-01", "a-02"]),
        ("matrix = { v = ['x-y', 'x'], w = ['z', 'y-z'] }", ["a-01", "a-02", "a-03", "a-04"]),
        ("matrix = { v = [''] }\ncopies = 2", ["a-_-01", "a-_-02"]),
        (f"matrix = {{ v = ['{'x' * 150}'] }}", ["a-01"]),
        ("for_each = 'in/*.csv'", ["a-x", "a-y"]),
        ("for_each = '**/[xy].*'", ["a-01", "a-02", "a-03"]),
        ("for_each = 'in/x.csv'\nmatrix = { v = [1] }\ncopies = 2", ["a-1-x-01", "a-1-x-02"]),
    ],
)
def test_names_are_made_of_values(tmp_path: Path, table: str, names: list[str]) -> None:
    """If these tell the jobs apart, and make names; else of their numbers."""
    (tmp_path / "in").mkdir()
    for name in ("x.csv", "y.csv", "x.txt", ".x.csv"):
        (tmp_path / "in" / name).touch()
    jobs = read(tmp_path, f"[[jobs]]\nname = 'a'\nscript = 'true'\n{table}\n").jobs
    assert [job.name for job in jobs] == names
    assert [job.spec.env["TASKSCALER_JOB_INDEX"] for job in jobs] == [str(index) for index in range(len(names))]
    assert {job.spec.env["TASKSCALER_JOB_COUNT"] for job in jobs} == {str(len(names))}


def test_each_job_has_its_file_alone(tmp_path: Path) -> None:
    """Beside those that all of them have."""
    for name in ("tool", "b.csv", "a b.csv"):
        (tmp_path / name).touch()
    jobs = read(
        tmp_path,
        """
        [[jobs]]
        name = "convert"
        script = './tool "$TASKSCALER_JOB_FILE"'
        files = ["tool"]
        for_each = "*.csv"
        """,
    ).jobs
    assert [job.spec.env["TASKSCALER_JOB_FILE"] for job in jobs] == ["a b.csv", "b.csv"]
    assert [job.spec.files for job in jobs] == [
        {"tool": tmp_path / "tool", name: tmp_path / name} for name in ("a b.csv", "b.csv")
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "**",
        "**/*",
        "**/x",
        "in/**/x",
        "**/deep/**/*",
        "**/**/x",
        "in/*",
        "in",
        "in/x",
        "none",
        "*/x",
        "*/",
        ".*",
        "[.]*",
    ],
)
def test_a_pattern_matches_what_a_shell_s_does(tmp_path: Path, pattern: str) -> None:
    """Of files without links, those that Python's own `glob` finds."""
    for name in ("x", ".x", "in/x", "in/.hidden/x", "in/deep/x", "in/deep/er/x.y", "deep/in/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = {each for each in glob(pattern, root_dir=tmp_path, recursive=True) if (tmp_path / each).is_file()}  # noqa: PTH207
    assert files_for(pattern, tmp_path, most=100, looks=repeat(0)) == sorted(expected)


def test_no_link_leads_round_in_circles(tmp_path: Path) -> None:
    """Two to their own directory have 2^40 paths; where links are named one by one, the looks end."""
    (tmp_path / "x").touch()
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(".")
    assert files_for("**/*", tmp_path, most=100, looks=iter(range(1, 20))) == ["x"]
    assert files_for("a/b/x", tmp_path, most=100, looks=iter(range(1, 20))) == ["a/b/x"]
    with pytest.raises(TooManyToLookAt):
        files_for("*/" * 39 + "none", tmp_path, most=100, looks=iter(range(1, 1000)))


def test_a_search_without_an_end_is_one_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tables search."""
    monkeypatch.setattr(_expansion, "MOST_LOOKED_AT", 5)
    for number in range(10):
        (tmp_path / str(number)).touch()
    tables = "".join(f"[[jobs]]\nname = '{name}'\nscript = 'true'\nfor_each = '*'\n" for name in "ab")
    assert wrong(tmp_path, tables) == ['jobs[0].for_each: "*", with too many files and directories to look at']


def test_comparisons_with_exceptions_are_bounded(tmp_path: Path) -> None:
    """A million combinations and a thousand tables of `include` may take minutes."""
    axes = ", ".join(f"{key} = {[*range(50)]}" for key in "abc")
    include = ", ".join(f"{{ d = {number} }}" for number in range(1000))
    table = f"[[jobs]]\nname = 'x'\nscript = 'true'\nmatrix = {{ {axes}, include = [{include}] }}\n"
    found = "jobs: 125000000 comparisons of combinations with tables of include and exclude"
    assert wrong(tmp_path, table) == [found]


def test_a_file_that_no_variable_can_name_is_refused(tmp_path: Path) -> None:
    """Its name is not UTF-8."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).touch()
    found = 'jobs[0].for_each: the file "?.csv"'
    assert wrong(tmp_path, "[[jobs]]\nname = 'a'\nscript = 'true'\nfor_each = '*.csv'\n") == [found]


def test_the_product_is_bounded_before_it_is_made(tmp_path: Path) -> None:
    """Ten keys of a hundred values each would never end."""
    table = "[[jobs]]\nname = 'NAME'\nscript = 'true'\nmatrix = { MATRIX }\n"
    numbers = [*range(100)]
    matrix = ", ".join(f"k{key} = {numbers}" for key in range(10))
    assert wrong(tmp_path, table.replace("MATRIX", matrix)) == ["jobs: 100000000000000000000"]
    matrix = ", ".join(f"k{key} = {numbers}" for key in range(3))
    tables = [table.replace("MATRIX", matrix).replace("NAME", name) for name in ("a", "b")]
    assert wrong(tmp_path, "".join(tables)) == ["jobs: 2000000"]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("matrix = { size = 1 }", ["jobs[0].matrix.size: 1"]),
        (
            "matrix = { size = [], lang = ['a', 'a'] }",
            ["jobs[0].matrix.size: an empty array", 'jobs[0].matrix.lang: "a" twice'],
        ),
        ("matrix = { size = [1, [2]] }", ["jobs[0].matrix.size[1]: an array"]),
        ("matrix = {}", ["jobs[0].matrix: an empty table"]),
        ("matrix = { 'a b' = [1], TASKSCALER_X = [1] }", ['jobs[0].matrix: "a b"', 'jobs[0].matrix: "TASKSCALER_X"']),
        (
            "matrix = { a = [1], include = [1], exclude = 1 }",
            ["jobs[0].matrix.include[0]: 1", "jobs[0].matrix.exclude: 1"],
        ),
        (
            "matrix = { a = [1], exclude = [{ b = 1 }] }",
            ['jobs[0].matrix.exclude[0]: "b", which is not a key of the matrix'],
        ),
        ("matrix = { a = [1], exclude = [{ a = 1 }] }", ["jobs[0].matrix: exclude leaves no combination"]),
        ("matrix = { a = [1] }\nenv = { a = '' }", ['jobs[0].env: "a" is also a key of the matrix']),
        ("for_each = '*.csv'", ['jobs[0].for_each: "*.csv", which matches no file']),
        ("for_each = '/etc/*'", ['jobs[0].for_each: "/etc/*"']),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(tmp_path: Path, table: str, found: list[str]) -> None:
    """All of it at once."""
    assert wrong(tmp_path, f"[[jobs]]\nname = 'a'\nscript = 'true'\n{table}\n") == found


def test_a_reference_to_no_key_is_wrong(tmp_path: Path) -> None:
    """A shell would only say that it is a bad substitution, on an instance that has booted for it."""
    table = "[[jobs]]\nname = 'a'\nscript = 'echo ${{ matrix.siez }}'\n"
    found = 'jobs[0].script: "${{ matrix.siez }}" in it, where matrix has no such key'
    assert wrong(tmp_path, table) == [found]
    assert wrong(tmp_path, f"{table}matrix = {{ size = [1] }}\n") == [found]


def test_the_examples_of_the_reference_are_these_jobs(tmp_path: Path) -> None:
    """What the page says of them is so."""
    page = (Path(__file__).parents[2] / "docs/reference/jobs-file.md").read_text()
    section = page.partition("## Many jobs from one table")[2].partition("### Names")[0]
    test, build, count = (block.partition("```")[0] for block in section.split("```toml\n")[1:])
    (tmp_path / "inputs").mkdir()
    for day in ("mon", "tue"):
        (tmp_path / "inputs" / f"{day}.csv").touch()
    jobs = read(tmp_path, test.partition('"local"')[2] + build + count).jobs
    assert [job.name for job in jobs] == [
        "test-1-c",
        "test-1-go",
        "test-2-c",
        "test-2-go",
        "build-linux-1",
        "build-linux-2",
        "build-windows-1",
        "build-freebsd-1",
        "count-mon",
        "count-tue",
    ]
    assert [job.spec.env.get("flags") for job in jobs[4:8]] == ["-O2", "-O2", None, None]


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        (("b", "", ""), []),
        (("b-01", "", ""), []),
        (("b-3", "", ""), ['jobs[0].needs: "b-3", which is not a job']),
        (("a", "", ""), ['jobs[0].needs: "a" needs itself']),
        (("b", "c", "a"), ['jobs[0].needs: a cycle: "a" needs "b", "b" needs "c", "c" needs "a"']),
        (("b-02", "a", ""), ['jobs[0].needs: a cycle: "a" needs "b-02", "b-02" needs "a"']),
    ],
)
def test_needs_are_of_tables_and_jobs(tmp_path: Path, needs: tuple[str, ...], found: list[str]) -> None:
    """A cycle is one error, which shows it."""
    text = "".join(
        f"[[jobs]]\nname = '{name}'\nscript = 'true'\nneeds = {[need] if need else []}\n{more}"
        for name, need, more in zip("abc", needs, ("", "copies = 2\n", ""), strict=True)
    )
    if found:
        assert wrong(tmp_path, text) == found
    else:
        assert read(tmp_path, text).jobs.plan[0].needs == (needs[0],)
