"""Files of functions and lists of steps: what they mean, and what of them is refused, with its line."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_steps import (
    BuiltinReference,
    DynamicReference,
    GitReference,
    ImageReference,
    LocalReference,
    Reference,
    StepsInvalid,
    parse_reference,
    read_steps,
)
from job_steps._yaml import MAX_LENGTH, plain, read_documents

COMMIT = "3c63f399ace12061db4b8b9a29f522f41a3d7f25"

REFERENCES: list[tuple[str, Reference, str]] = [
    ("./path/to/func", LocalReference("./path/to/func"), "./path/to/func"),
    ("../greeting", LocalReference("../greeting"), "../greeting"),
    (".", LocalReference("."), "."),
    ("./", LocalReference("."), "."),
    ("/opt/funcs/mine", LocalReference("/opt/funcs/mine"), "/opt/funcs/mine"),
    ("/", LocalReference("/"), "/"),
    ("./funcs/dry-run.yml", LocalReference("./funcs", "dry-run.yml"), "./funcs/dry-run.yml"),
    ("./func.yml", LocalReference(".", "func.yml"), "./func.yml"),
    ("/func.yml", LocalReference("/", "func.yml"), "/func.yml"),
    (
        "gitlab.com/components/echo@v1.0.0",
        GitReference("https://gitlab.com/components/echo", "v1.0.0", "steps"),
        "https://gitlab.com/components/echo/-/steps@v1.0.0",
    ),
    (
        f"gitlab.com/components/echo/-/reverse/my-step.yml@{COMMIT}",
        GitReference("https://gitlab.com/components/echo", COMMIT, "steps/reverse", "my-step.yml"),
        f"https://gitlab.com/components/echo/-/steps/reverse/my-step.yml@{COMMIT}",
    ),
    (
        "http://localhost:8080/a/b@main",
        GitReference("http://localhost:8080/a/b", "main", "steps"),
        "http://localhost:8080/a/b/-/steps@main",
    ),
    (
        "gitlab-ci-token:secret@gitlab.com/funcs/repo@v2",
        GitReference("https://gitlab-ci-token:secret@gitlab.com/funcs/repo", "v2", "steps"),
        "https://gitlab.com/funcs/repo/-/steps@v2",
    ),
    (
        "registry.gitlab.com/examples/echo:1",
        ImageReference("registry.gitlab.com", "examples/echo", "1"),
        "registry.gitlab.com/examples/echo:1",
    ),
    (
        "registry.gitlab.com:5000/examples/echo:1 reverse/func.yml",
        ImageReference("registry.gitlab.com:5000", "examples/echo", "1", "reverse", "func.yml"),
        "registry.gitlab.com:5000/examples/echo:1 reverse/func.yml",
    ),
    (
        f"registry.gitlab.com/examples/echo@sha256:{'0' * 64}",
        ImageReference("registry.gitlab.com", "examples/echo", f"sha256:{'0' * 64}"),
        f"registry.gitlab.com/examples/echo@sha256:{'0' * 64}",
    ),
    ("builtin://script", BuiltinReference("script"), "script"),
    ("builtin://function/oci/build", BuiltinReference("function/oci/build"), "builtin://function/oci/build"),
    ("dist://step/oci/fetch", BuiltinReference("step/oci/fetch"), "builtin://step/oci/fetch"),
    ("${{ env.REF }}", DynamicReference("${{ env.REF }}"), "${{ env.REF }}"),
    ("./${{ inputs.which }}", DynamicReference("./${{ inputs.which }}"), "./${{ inputs.which }}"),
]
"""What a reference says. Source: docs.gitlab.com/ci/functions, "Function reference"; without logins when shown."""


@pytest.mark.parametrize(("text", "reference", "shown"), REFERENCES, ids=[text for text, _, _ in REFERENCES])
def test_a_reference_says_where_a_function_comes_from(text: str, reference: Reference, shown: str) -> None:
    """As it is written, and as people read it."""
    assert parse_reference(text) == reference
    assert str(reference) == shown


@pytest.mark.parametrize("text", ["", "echo", "gitlab.com/x/y", "@v1", "x@", "a b@c", "ftp"])
def test_a_reference_to_nothing_is_refused(text: str) -> None:
    """The error says what was expected."""
    with pytest.raises(ValueError, match="is not a reference to a function; expected a path such as"):
        parse_reference(text)


@pytest.mark.parametrize("text", ["gitlab.com/x/-/../../etc@main", "registry.io/x/y:1 ../func.yml"])
def test_a_reference_stays_inside(text: str) -> None:
    """What comes from elsewhere has no path out of itself."""
    with pytest.raises(ValueError, match="leads out of where the function comes from"):
        parse_reference(text)


def test_pinned_is_what_cannot_change() -> None:
    """A whole commit, a digest."""
    assert GitReference("https://x", COMMIT).is_pinned
    assert not GitReference("https://x", COMMIT[:12]).is_pinned
    assert not GitReference("https://x", "main").is_pinned
    assert ImageReference("r", "x", "sha256:00").is_pinned
    assert not ImageReference("r", "x", "latest").is_pinned


WHOLE = """
spec:
  inputs:
    name: {type: string, default: steppy, description: who}
    count: {type: number}
    flag: {type: boolean, default: false}
    many: {type: array, default: [1, a]}
    more: {type: struct, default: {a: 1}}
    token: {type: string, sensitive: true}
  outputs:
    greeting: {type: string, default: ""}
---
env:
  FOO: 1
run:
  - name: one
    func: ./one
    inputs: {who: "${{ inputs.name }}", n: 1, yes: yes}
    env: {BAR: "${{ inputs.token }}", BAZ: true}
  - name: two
    script: echo two
  - name: three
    step:
      git: {url: gitlab.com/a/b, rev: main, dir: c/d, file: e.yml}
  - name: four
    func:
      oci: {registry: r.io, repository: x/y, tag: "1", dir: /z}
  - name: five
    action: actions/checkout@v4
    inputs: {ref: main}
outputs:
  greeting: ${{ steps.one.outputs.greeting }}
"""


def test_a_file_means_what_it_says() -> None:
    """Everything that a file may have."""
    found = read_steps(WHOLE, source="func.yml")
    kinds = [each.kind for each in found.inputs.values()]
    assert kinds == ["string", "number", "boolean", "array", "struct", "string"]
    defaults = [each.default for each in found.inputs.values()]
    assert defaults == ["steppy", None, False, [1, "a"], {"a": 1}, None]
    assert [name for name, each in found.inputs.items() if each.is_sensitive] == ["token"]
    assert found.inputs["name"].description == "who"
    assert found.outputs["greeting"].default == ""
    assert found.env == {"FOO": "1"}
    assert found.output_values == {"greeting": "${{ steps.one.outputs.greeting }}"}
    assert [(each.name, each.line, str(each.reference)) for each in found.steps] == [
        ("one", 16, "./one"),
        ("two", 20, "script"),
        ("three", 22, "https://gitlab.com/a/b/-/c/d/e.yml@main"),
        ("four", 25, "r.io/x/y:1 z"),
        ("five", 28, "https://gitlab.com/components/action-runner@main"),
    ]
    one, two, *_, five = found.steps
    assert one.inputs == {"who": "${{ inputs.name }}", "n": 1, "yes": "yes"}
    assert one.env == {"BAR": "${{ inputs.token }}", "BAZ": "true"}
    assert (two.script, two.inputs) == ("echo two", {"script": "echo two"})
    assert five.inputs == {"action": "actions/checkout@v4", "inputs": {"ref": "main"}}


def test_a_list_is_a_function_without_an_interface() -> None:
    """What a job's `run:` has; also as the two documents that runners make of it, and as JSON."""
    listed = "- name: a\n  script: echo a\n"
    of_a_runner = f"{{}}\n---\nrun:\n{listed}"
    as_json = '[{"name": "a", "script": "echo a"}]'
    found = [read_steps(text).steps for text in (listed, of_a_runner, as_json)]
    assert [[(each.name, each.script) for each in steps] for steps in found] == [[("a", "echo a")]] * 3
    assert read_steps("spec:\n---\nrun: []\n").steps == ()


EXEC = "spec:\n---\nexec:\n  command: [{}]\n"


def spec(text: str) -> str:
    """Write a function around its interface."""
    return f"spec:\n{text}\n---\nexec: {{command: [a]}}\n"


def run(text: str) -> str:
    """Write a function around its steps."""
    return f"spec:\n---\nrun:\n{text}\n"


MISTAKES = [
    ("", "f:1: found nothing; expected a list of steps, or a function: `spec:`, `---`, `exec:` or `run:`"),
    ("spec:\n", "f:1: found one document; expected two, with `---` between them"),
    ("spec:\n---\nexec: {command: [a]}\n---\nmore: 1\n", "f:4: found 3 documents; expected two"),
    ("- a\n---\n- b\n", "f:1: a list as the first document; expected keys and values"),
    ("spec:\n---\nfoo\n", "f:3: `foo` as the second document; expected keys and values"),
    ("specs:\n---\nexec: {command: [a]}\n", "f:1: unknown key `specs` in the first document; did you mean `spec`?"),
    ("spec:\n---\nenv: {}\n", "f:3: neither `exec` nor `run` in the second document; expected one of them"),
    ("spec:\n---\nexec: {command: [a]}\nrun: []\n", "f:3: both `exec` and `run` in the second document"),
    ("spec:\n---\nsteps: []\n", "f:3: unknown key `steps` in the second document; did you mean `run`?"),
    ("spec:\n---\ntype: exec\n", "f:3: unknown key `type` in the second document; expected `exec`, `run`, `env`"),
    ("spec:\n---\nexec: {comand: [a]}\n", "f:3: unknown key `comand` in `exec`; did you mean `command`?"),
    (
        "spec:\n---\nexec: {command: [a], workDir: b}\n",
        "f:3: unknown key `workDir` in `exec`; did you mean `work_dir`?",
    ),
    ("spec:\n---\nexec:\n", "f:3: `exec` has no `command`; expected a list: the program, then its arguments"),
    ("spec:\n---\nexec:\n  command: echo\n", "f:4: `echo` as `command`; expected a list"),
    ("spec:\n---\nexec: {command: []}\n", "f:3: a list as `command`; expected a list"),
    (EXEC.format("a, [b]"), "f:4: a list as an item of `command`; expected a string"),
    (EXEC.format("a, null"), "f:4: nothing as an item of `command`; expected a string"),
    (EXEC.format("a, '${{ }}'"), "f:4: there is nothing between `${{` and `}}`, at character 1"),
    ("spec:\n---\nexec: {command: [a]}\noutputs: {a: 1}\n", "f:4: `outputs` beside `exec`; only a function with `run`"),
    ("spec:\n---\nexec: {command: [a]}\ndelegate: a\n", "f:4: `delegate` beside `exec`; only a function with `run`"),
    ("spec:\n---\nrun: []\nenv: {1a: b}\n", "f:4: `1a` cannot be the name of a variable; expected letters, digits and"),
    ("spec:\n---\nrun: []\nenv: {A: [b]}\n", "f:4: a list as `A` in `env`; expected a string"),
    ("spec: []\n---\nexec: {command: [a]}\n", "f:1: a list as `spec`; expected keys and values"),
    (spec("  input: {}"), "f:2: unknown key `input` in `spec`; did you mean `inputs`?"),
    (spec("  inputs:\n    my-name: {type: string}"), "f:3: `my-name` cannot be the name of an input; expected letters"),
    (spec("  inputs:\n    a:"), "f:3: input `a` has no `type`; expected one of `string`, `number`, `boolean`"),
    (spec("  inputs:\n    a: {type: int}"), "f:3: `int` as the type of input `a`; expected one of `string`"),
    (spec("  inputs:\n    a: {typ: string}"), "f:3: unknown key `typ` in input `a`; did you mean `type`?"),
    (spec("  inputs:\n    a: {type: number, default: b}"), "f:3: the default of input `a` is a string; expected a num"),
    (spec("  inputs:\n    a: {type: string, default: 1}"), "f:3: the default of input `a` is a number; expected a str"),
    (spec("  inputs:\n    a: {type: string, sensitive: no}"), "f:3: `no` as `sensitive` of input `a`; expected `true`"),
    (spec("  outputs: delegated"), "f:2: `delegated` as `outputs`; expected `delegate`, or the outputs by name"),
    (spec("  outputs:\n    a: {type: raw_string}"), "f:3: `raw_string` as the type of output `a`; expected one of"),
    ("spec: {outputs: delegate}\n---\nrun: []\n", "f:3: the outputs are delegated, and `delegate` is missing"),
    (
        "spec: {outputs: delegate}\n---\nrun: []\ndelegate: a\n",
        "f:4: the outputs are delegated, and no step is called `a`; expected the name of a step of `run`",
    ),
    (run("  a: b"), "f:4: a mapping where a list of steps was expected"),
    (run("  - a"), "f:4: `a` as a step; expected keys and values"),
    (run("  - script: a"), "f:4: a step has no `name`"),
    (
        run("  - name: my-step\n    script: a"),
        "f:4: `my-step` cannot be the name of a step; expected letters, digits and",
    ),
    (run("  - name: a"), "f:4: step `a` has nothing to run; expected either `func` or `script`"),
    (run("  - {name: a, func: ./b, script: c}"), "f:4: step `a` has `func` and `script`; expected either"),
    (run("  - {name: a, func: ./b, step: ./b}"), "f:4: step `a` has `func` and `step`; expected either"),
    (run("  - {name: a, script: ''}"), "f:4: `script` of step `a` is empty"),
    (run("  - {name: a, script: b, inputs: {c: d}}"), "f:4: step `a` has `script` and `inputs`; a script takes"),
    (run("  - {name: a, func: ./b, input: {}}"), "f:4: unknown key `input` in a step; did you mean `inputs`?"),
    (run("  - {name: a, uses: ./b}"), "f:4: unknown key `uses` in a step; did you mean `func`?"),
    (run("  - {name: a, func: nowhere}"), "f:4: step `a`: `nowhere` is not a reference to a function; expected a path"),
    (run("  - {name: a, func: {git: {url: x}}}"), "f:4: `git` of step `a` has no `rev`"),
    (run("  - {name: a, func: {git: {url: x, ref: y}}}"), "f:4: unknown key `ref` in `git`; did you mean `rev`?"),
    (run("  - {name: a, func: {oci: {registry: x, repository: y}}}"), "f:4: `oci` of step `a` has no `tag`"),
    (run("  - {name: a, func: {}}"), "f:4: the function of step `a` has neither `git` nor `oci`; expected one"),
    (run("  - {name: a, func: {git: {url: x, rev: y, dir: ../z}}}"), "f:4: step `a`: `../z` leads out of where"),
    (run("  - name: a\n    script: |\n      echo ${{ 1 + }}"), "f:5: `}` where a value was expected, at character 14"),
    (run("  - {name: a, func: ./b, inputs: {c: ['${{']}}"), "f:4: no `}}` follows; end the expression with it"),
    ("a: [\n", "f:2: not YAML: "),
    ("a: 1\na: 2\n", "f:2: the key `a` stands here a second time; the first is in line 1"),
    ("a: &x [*x]\n", "f:1: the alias `*x` stands inside what it stands for"),
    ("a: *x\n", "f:1: the alias `*x` has no anchor before it"),
    ("a: !!python/object:os.system {}\n", "f:1: the tag `tag:yaml.org,2002:python/object:os.system`; steps need no"),
    ("a: !custom b\n", "f:1: the tag `!custom`; steps need no tags"),
    ("a: !!int b\n", "f:1: `b` has the tag `!!int`, and is something else"),
    ("a: .nan\n", "f:1: `.nan` as a number; expected a finite one"),
    ("a: 1e999\n", "f:1: the number `1e999` is too big; numbers have 64 bits"),
    ("? [a]\n: b\n", "f:1: a key that is a list or a mapping; keys are text"),
    ("<<: a\n", "f:1: what stands behind `<<` is neither a mapping nor a list of them"),
    ("a: " + "[" * 100, "f:1: more than 64 levels of lists and mappings"),
    ("a: \x00\n", "f:1: not YAML: "),
    ("x" * (MAX_LENGTH + 1), f"f:1: {MAX_LENGTH + 1} characters; at most {MAX_LENGTH} are read"),
]


@pytest.mark.parametrize(("text", "error"), MISTAKES, ids=[str(number) for number in range(len(MISTAKES))])
def test_a_mistake_is_named_with_its_line(text: str, error: str) -> None:
    """What is there, and what was expected, or meant."""
    with pytest.raises(StepsInvalid) as raised:
        read_steps(text, source="f")
    assert str(raised.value).startswith(error)
    assert str(raised.value).startswith(f"f:{raised.value.line}: ")


def test_a_yaml_bomb_does_not_go_off() -> None:
    """Nine lists of nine aliases each are a thousand million values; and levels add up behind aliases, too."""
    lines = ["a: &a [1,1,1,1,1,1,1,1,1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    with pytest.raises(StepsInvalid, match="more than 100000 values, those behind aliases included"):
        read_steps("\n".join(lines))
    deep = [f"a0: &a0 {'[' * 30}{']' * 30}"]
    deep += [f"a{n}: &a{n} {'[' * 30}*a{n - 1}{']' * 30}" for n in range(1, 50)]
    with pytest.raises(StepsInvalid, match="more than 64 levels of lists and mappings, those behind aliases included"):
        read_steps("\n".join(deep))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2026-11-27", "2026-11-27"),
        ("1_000", "1_000"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1e3", 1000),
        (".5", 0.5),
        ("1.", 1),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("!!float 1", 1),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("{<<: [{a: 1}, {a: 2, b: 3}], a: 0}", {"a": 0, "b": 3}),
        ("{1: a, true: b}", {"1": "a", "true": "b"}),
        ("|\n  a\n  b", "a\nb\n"),
    ],
)
def test_plain_scalars_mean_what_they_mean_to_gitlab(text: str, value: object) -> None:
    """YAML 1.2's core schema: what looks like a word is one."""
    (document,) = read_documents(f"x: {text}\n", source="f")
    found = plain(document.root)
    assert found == {"x": value}
    assert isinstance(found, dict)
    assert type(found["x"]) is type(value)


@given(st.text(alphabet="-:[]{}&*!|>'\"%@`?,# \nabc01.~<$", max_size=80))
def test_every_text_is_read_or_refused(text: str) -> None:
    """Nothing else comes out, whatever a file has."""
    with suppress(StepsInvalid):
        assert read_steps(text, source="f").source == "f"


def test_files_mean_the_same_where_the_fast_parser_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents have the one that is written in Python; only what it says of text that is not YAML is different."""
    monkeypatch.delattr("yaml.CSafeLoader")
    assert read_steps(WHOLE, source="func.yml").steps[4].inputs["inputs"] == {"ref": "main"}
    for text, error in MISTAKES:
        with pytest.raises(StepsInvalid) as raised:
            read_steps(text, source="f")
        assert str(raised.value).startswith(error) or "not YAML" in str(raised.value)
