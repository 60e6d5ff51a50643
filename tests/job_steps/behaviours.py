"""What GitLab publishes of how steps behave, as a table: each case with its source, and what has to come out.

Sources: `docs/…` is docs.gitlab.com/ci/functions (2026-11) and `old docs` docs.gitlab.com/17.11/ci/steps, `tests/…` the
integration tests of GitLab's step runner 0.11.0, `source` its code, `seen` what that version did when it was run here.
Where a later page of the documentation says otherwise than 0.11.0 does, the case follows the page, and says how they
differ.
"""

import json
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from attrs import field, frozen

ECHO = """
spec: {inputs: {message: {type: string}}, outputs: {message: {type: string}}}
---
exec:
  command: [sh, -c, 'echo "$0"; printf "{\\"name\\":\\"message\\",\\"value\\":\\"%s\\"}" "$0" > $1', "${{ inputs.message }}", "${{ output_file }}"]
"""
"""A function that prints what it is given, and returns it."""

SAY = """
spec: {inputs: {value: {type: KIND}}}
---
exec: {command: [echo, "<${{ inputs.value }}>"]}
"""


def writes(*lines: str, spec: str = "", to: str = "output_file") -> str:
    """Make a function that writes lines into one of its files; no two braces end one, which 0.11.0 takes for its own."""
    told = " ".join("'" + re.sub("}(?=})", "} ", line) + "'" for line in lines)
    script = f"printf '%s\\n' {told} > ${{{{ {to} }}}}"
    return f"spec: {{{spec}}}\n---\nexec:\n  command:\n    - sh\n    - -c\n    - |\n      {script}\n"


def exports(name: str, value: str) -> str:
    """Make a function that exports one variable; *value* is JSON."""
    return writes(f'{{"name":"{name}","value":{value}}}', to="export_file")


@frozen(kw_only=True)
class Case:
    """Steps, and what has to come out."""

    name: str
    source: str
    steps: str
    """A list of steps, as a job has it."""
    functions: Mapping[str, str] = field(factory=dict)
    """Files of functions by directory; a name with an ending is a file."""
    succeed: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    """The steps that succeed, by path, with their outputs."""
    exports: Mapping[str, Mapping[str, str]] = field(factory=dict)
    """What they export, by path, if they do."""
    failing: str = ""
    """The step on which it fails, by path; empty if it does not fail."""
    log: str = ""
    """What is logged; `DIR` is the directory of the job."""
    variables: Mapping[str, str] = field(factory=dict)
    """Of the job."""
    env: Mapping[str, str] = field(factory=dict)
    """Beside `PATH`."""
    differs: str = ""
    """How 0.11.0 does otherwise."""


def case(
    name: str,
    source: str,
    steps: str,
    *,
    succeed: "str | Mapping[str, Mapping[str, Any]]" = "",
    log: str = "",
    **more: Any,  # noqa: ANN401  (the fields of Case)
) -> Case:
    """Write a case; steps that return nothing are given as words."""
    done = {path: {} for path in succeed.split()} if isinstance(succeed, str) else succeed
    return Case(name=name, source=source, steps=dedent(steps), succeed=done, log=dedent(log).strip("\n"), **more)


def says(text: str, *, name: str = "a") -> str:
    """What is logged of one step that prints."""
    return f'Running step "{name}"\n{text}'


def typed(kind: str, given: str, shown: str, *, source: str = "docs/create#inputs", **more: Any) -> Case:  # noqa: ANN401  (the same)
    """Write a case of an input of a type."""
    return case(
        f"an input of type {kind}: {given}",
        source,
        f"- {{name: a, step: ./say, inputs: {{value: {given}}}}}",
        functions={"say": SAY.replace("KIND", kind)},
        succeed="a",
        log=says(f"<{shown}>"),
        **more,
    )


def returned(name: str, source: str, lines: tuple[str, ...], spec: str, value: Any = None, **more: Any) -> Case:  # noqa: ANN401  (the same)
    """Write a case of outputs; without a value, the step fails."""
    ends: dict[str, Any] = {"succeed": {"a": value}} if value is not None else {"failing": "a"}
    functions = {"f": writes(*lines, spec=f"outputs: {{{spec}}}")}
    return case(name, source, "- {name: a, step: ./f}", functions=functions, log='Running step "a"', **ends, **more)


def expression(text: str, shown: str, *, source: str = "docs/moa", **more: Any) -> Case:  # noqa: ANN401  (the same)
    """Write a case of an expression in a text."""
    steps = json.dumps([{"name": "a", "script": f"echo '<{text}>'"}])
    return case(f"the expression {text}", source, steps, succeed="a", log=says(f"<{shown}>"), **more)


NESTED = "it reads no structs in lists of inputs, and none in outputs"
EMPTY = "it refuses a file with an empty list of steps"
LENIENT = "it overlooks unknown keys in files, against its own schema"
MOA = "the language had no operators, brackets and functions before"
NAMES = "these names are newer"

COMMANDS = (
    case(
        "a command has no shell",
        "docs/create#exec",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [echo, 'a  b', '$HOME', '*', ';', ls]}\n"},
        succeed="a",
        log=says("a  b $HOME * ; ls"),
    ),
    case(
        "a command runs in the directory of the job",
        "docs/create#exec",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [pwd]}\n"},
        succeed="a",
        log=says("DIR"),
    ),
    case(
        "a command runs where work_dir says",
        "docs/create#exec",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [pwd], work_dir: '${{ step_dir }}'}\n"},
        succeed="a",
        log=says("DIR/f"),
    ),
    case(
        "a program is found beside the function",
        "docs/create#exec",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [sh, '${{ step_dir }}/it.sh']}\n", "f/it.sh": "echo found\n"},
        succeed="a",
        log=says("found"),
    ),
    case(
        "numbers and booleans in a command are taken as they are written",
        "seen",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [echo, 1, 1.50, true]}\n"},
        succeed="a",
        log=says("1 1.50 true"),
    ),
    case(
        "errors are logged too",
        "source: executable_step.go",
        "- {name: a, script: 'echo out; echo err >&2; echo out'}",
        succeed="a",
        log=says("out\nerr\nout"),
    ),
    case(
        "a command that fails fails the step, and what follows does not run",
        "docs/create#exec",
        "- {name: a, script: exit 3}\n- {name: b, script: echo no}\n",
        failing="a",
        log='Running step "a"',
    ),
    case(
        "a program that is not there fails the step",
        "seen",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [there-is-no-such-program]}\n"},
        failing="a",
        log='Running step "a"',
    ),
    case(
        "a directory that is not there fails the step",
        "seen",
        "- {name: a, step: ./f}",
        functions={"f": "spec:\n---\nexec: {command: [pwd], work_dir: /there/is/none}\n"},
        failing="a",
        log='Running step "a"',
    ),
    case("no steps are no failure", "seen", "[]"),
    case(
        "a command is evaluated before it runs, its name too",
        "old docs",
        "- {name: a, step: ./f, inputs: {program: echo}}",
        functions={
            "f": "spec: {inputs: {program: {type: string}}}\n---\nexec: {command: ['${{ inputs.program }}', hi]}\n"
        },
        succeed="a",
        log=says("hi"),
    ),
)

SCRIPTS = (
    case("a script runs in a shell", "docs#run-a-script", "- {name: a, script: 'echo a | tr a b && echo $((1 + 1))'}",
         succeed="a", log=says("b\n2")),
    case("a script has many lines", "docs#run-a-script", "- name: a\n  script: |\n    x=1\n    echo $x\n    echo 2\n",
         succeed="a", log=says("1\n2")),
    case("a script goes on after a command that fails", "source: run_script.sh", "- {name: a, script: 'false; echo on'}",
         succeed="a", log=says("on")),
    case("a script has the status of its last command", "source: run_script.sh", "- {name: a, script: 'true; false'}",
         failing="a", log='Running step "a"'),
    case("a script has env", "docs#run-a-script", "- {name: a, script: echo $WHO, env: {WHO: Sally}}",
         succeed="a", log=says("Sally")),
    case("a script runs in the directory of the job", "docs#run-a-script", "- {name: a, script: pwd}",
         succeed="a", log=says("DIR")),
    case("a script is evaluated before the shell sees it", "docs#run-a-script",
         "- {name: a, script: 'echo \"Hi ${{ job.CI_FRIEND }}!\"'}", variables={"CI_FRIEND": "Sally"},
         succeed="a", log=says("Hi Sally!")),
    case("a script reads nothing", "seen", "- {name: a, script: 'cat; echo end'}", succeed="a", log=says("end")),
    case("a script with inputs is refused", "source: schema/v1/step.go", "- {name: a, script: 'true', inputs: {b: 1}}"),
    case("a step with script and step is refused", "old docs", "- {name: a, script: 'true', step: ./b}"),
)  # fmt: skip

INPUTS = (
    typed("string", "hello", "hello"),
    typed("string", "''", ""),
    typed("number", "56.77", "56.77"),
    typed("number", "5", "5"),
    typed("number", "5.0", "5"),
    typed("number", "1e21", "1e+21"),
    typed("number", "0.0000001", "1e-7"),
    typed("number", "-0.25", "-0.25"),
    typed("boolean", "true", "true"),
    typed("boolean", "false", "false"),
    typed("array", "[a, 1, [true]]", '["a",1,[true]]'),
    typed("struct", "{k2: v2, k1: {a: [1]}}", '{"k1":{"a":[1]},"k2":"v2"}'),
    typed("struct", "{}", "{}"),
    typed("string", "null", "null", source="seen"),
    typed("number", "text", "text", source="seen: the type of what is given is not checked"),
    typed("string", "yes", "yes", source="seen"),
    typed("string", "'1'", "1", source="seen"),
    typed("array", "['${{ env.USER }}', {a: '${{ env.USER }}'}]", '["me",{"a":"me"}]', env={"USER": "me"},
          differs=NESTED),
    typed("array", "['${{ env.USER }}', 1]", '["me",1]', env={"USER": "me"}),
    typed("struct", "{a: ['${{ env.USER }}'], b: {c: '<${{ env.USER }}>'}}", r'{"a":["me"],"b":{"c":"\u003cme\u003e"}}',
          env={"USER": "me"}),
    typed("struct", "{'${{ env.USER }}': 1}", '{"${{ env.USER }}":1}', env={"USER": "me"}, source="source: expandStruct"),
    *(
        case(
            f"a default of type {kind}: {default}",
            "docs/create#inputs",
            "- {name: a, step: ./say}",
            functions={"say": SAY.replace("KIND", f"{kind}, default: {default}")},
            succeed="a",
            log=says(f"<{shown}>"),
        )
        for kind, default, shown in (
            ("string", "joe", "joe"),
            ("string", "''", ""),
            ("number", "0", "0"),
            ("boolean", "false", "false"),
            ("array", "[]", "[]"),
            ("struct", "{color: red}", '{"color":"red"}'),
        )
    ),
    case(
        "a default is not evaluated",
        "docs/17.5: defaults cannot use expressions",
        "- {name: a, step: ./say}",
        functions={"say": SAY.replace("KIND", "string, default: '${{ env.USER }}'")},
        env={"USER": "me"},
        succeed="a",
        log=says("<${{ env.USER }}>"),
    ),
    case(
        "what is given goes before the default",
        "docs/create#inputs",
        "- {name: a, step: ./say, inputs: {value: given}}",
        functions={"say": SAY.replace("KIND", "string, default: default")},
        succeed="a",
        log=says("<given>"),
    ),
    case("an input without default must be given", "docs/create#inputs", "- {name: a, step: ./echo}", failing="a"),
    case("an input that the function does not have is refused", "source: buildInputVars",
         "- {name: a, step: ./echo, inputs: {message: a, other: b}}", failing="a"),
    case("a sensitive input is passed on", "source: spec.json", "- {name: a, step: ./say, inputs: {value: s3cret}}",
         functions={"say": SAY.replace("KIND", "string, sensitive: true")}, succeed="a", log=says("<s3cret>")),
    case("an input may have a description", "docs/examples", "- {name: a, step: ./say}",
         functions={"say": SAY.replace("KIND", "string, default: b, description: what it says")},
         succeed="a", log=says("<b>")),
    case("an input needs a type", "docs/create#inputs", "- {name: a, step: ./f}", failing="a",
         functions={"f": "spec: {inputs: {b: {default: c}}}\n---\nexec: {command: ['true']}\n"}),
    case("a type has to be one of five", "docs/create#inputs", "- {name: a, step: ./f}", failing="a",
         functions={"f": "spec: {inputs: {b: {type: integer}}}\n---\nexec: {command: ['true']}\n"}),
    case("a default has to be of the type", "source: schema/v1/inputs.go", "- {name: a, step: ./f}", failing="a",
         functions={"f": "spec: {inputs: {b: {type: number, default: c}}}\n---\nexec: {command: ['true']}\n"}),
    case("a name of an input has no hyphen", "docs/create#inputs", "- {name: a, step: ./f}", failing="a",
         functions={"f": "spec: {inputs: {b-c: {type: string, default: ''}}}\n---\nexec: {command: ['true']}\n"}),
)  # fmt: skip

OUTPUTS = (
    returned("an output of each type", "docs/create#outputs",
             ('{"name":"s","value":"x"}', '{"name":"n","value":1.5}', '{"name":"b","value":true}',
              '{"name":"a","value":[1,"2"]}', '{"name":"o","value":{"k":null}}'),
             "s: {type: string}, n: {type: number}, b: {type: boolean}, a: {type: array}, o: {type: struct}",
             {"s": "x", "n": 1.5, "b": True, "a": [1, "2"], "o": {"k": None}}),
    returned("an output that is not written has its default", "docs/create#outputs", ("",),
             "v: {type: number, default: 7}", {"v": 7}),
    returned("a default of an output may be false", "seen", ("",), "v: {type: boolean, default: false}", {"v": False}),
    returned("an output that is written has no need of its default", "docs/create#outputs", ('{"name":"v","value":8}',),
             "v: {type: number, default: 7}", {"v": 8}),
    returned("an output without default must be written", "docs/create#outputs", ("",), "v: {type: number}"),
    returned("an output must be declared", "source: step_file.go", ('{"name":"w","value":8}',),
             "v: {type: number, default: 7}"),
    returned("an output must be of its type", "source: step_file.go", ('{"name":"v","value":"8"}',), "v: {type: number}"),
    returned("an output is not null", "CHANGELOG 0.2.0", ('{"name":"v","value":null}',), "v: {type: number, default: 1}"),
    returned("an output has a value", "CHANGELOG 0.2.0", ('{"name":"v"}',), "v: {type: number, default: 1}"),
    returned("an output has a name", "CHANGELOG 0.2.0", ('{"value":1}',), "v: {type: number, default: 1}"),
    returned("the name of an output is not null", "CHANGELOG 0.2.0", ('{"name":null,"value":1}',),
             "v: {type: number, default: 1}"),
    returned("the name of an output is not empty", "source: step_file.go", ('{"name":"","value":1}',),
             "v: {type: number, default: 1}"),
    returned("a line is JSON", "CHANGELOG 0.2.0", ("v=1",), "v: {type: number, default: 1}"),
    returned("empty lines are left out", "source: step_file.go", ("", '{"name":"v","value":1}', "", ""),
             "v: {type: number}", {"v": 1}),
    returned("what is written last counts", "source: step_file.go", ('{"name":"v","value":1}', '{"name":"v","value":2}'),
             "v: {type: number}", {"v": 2}),
    returned("what else is in a line is left out", "seen", ('{"name":"v","value":1,"note":"x"}',), "v: {type: number}",
             {"v": 1}),
    returned("spaces in a line are nothing", "seen", ('  {"name": "v", "value": 1}  ',), "v: {type: number}", {"v": 1}),
    returned("no outputs are declared, and none is written", "docs/create#outputs", ("",), "", {}),
    case("a later step has the outputs, with their types", "docs#expressions",
         "- {name: a, step: ./f}\n- {name: b, step: ./say, inputs: {value: '${{ steps.a.outputs.v }}'}}\n",
         functions={"f": writes('{"name":"v","value":[1,{"k":"x"}]}', spec="outputs: {v: {type: array}}"),
                    "say": SAY.replace("KIND", "array")},
         succeed={"a": {"v": [1, {"k": "x"}]}, "b": {}},
         log='Running step "a"\nRunning step "b"\n<[1,{"k":"x"}]>'),
    case("a part of an output", "docs#expressions",
         "- {name: a, step: ./f}\n- {name: b, script: 'echo ${{ steps.a.outputs.v.k.j }}'}\n",
         functions={"f": writes('{"name":"v","value":{"k":{"j":5}}}', spec="outputs: {v: {type: struct}}")},
         succeed={"a": {"v": {"k": {"j": 5}}}, "b": {}}, log='Running step "a"\nRunning step "b"\n5'),
    case("outputs of a step that is not there", "tests/outputs", "- {name: b, script: 'echo ${{ steps.a.outputs.v }}'}",
         failing="b"),
    case("an output that is not there", "source: digMap",
         "- {name: a, step: ./echo, inputs: {message: m}}\n- {name: b, script: 'echo ${{ steps.a.outputs.v }}'}\n",
         succeed={"a": {"message": "m"}}, failing="b", log=says("m")),
    case("outputs of a function with steps", "docs/create#run", "- {name: a, step: ./f}\n",
         functions={"f": "spec: {outputs: {x: {type: string}, y: {type: struct}}}\n---\nrun:\n"
                         "  - {name: e, step: ../echo, inputs: {message: m}}\n"
                         "outputs: {x: '${{ steps.e.outputs.message }}', y: {z: ['<${{ steps.e.outputs.message }}>']}}\n"},
         succeed={"a/e": {"message": "m"}, "a": {"x": "m", "y": {"z": ["<m>"]}}}, log=says("m", name="e"), differs=NESTED),
    case("outputs of a function with steps, one by one", "docs/create#run", "- {name: a, step: ./f}\n",
         functions={"f": "spec: {outputs: {x: {type: string}, y: {type: array}}}\n---\nrun:\n"
                         "  - {name: e, step: ../echo, inputs: {message: m}}\n"
                         "outputs: {x: '${{ steps.e.outputs.message }}', y: ['<${{ steps.e.outputs.message }}>', 1]}\n"},
         succeed={"a/e": {"message": "m"}, "a": {"x": "m", "y": ["<m>", 1]}}, log=says("m", name="e")),
    case("outputs of a function with steps may be literal", "tests/outputs", "- {name: a, step: ./f}\n",
         functions={"f": "spec: {outputs: {x: {type: string}}}\n---\nrun: [{name: b, script: 'true'}]\noutputs: {x: Foo}\n"},
         succeed={"a/b": {}, "a": {"x": "Foo"}}, log='Running step "b"'),
    case("a function may have no steps", "seen in no source: ours", "- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nrun: []\n"}, succeed="a", differs=EMPTY),
    case("outputs of steps inside a function are not seen from outside", "tests/outputs",
         "- {name: a, step: ./f}\n- {name: b, step: ./echo, inputs: {message: '${{ steps.e.outputs.message }}'}}\n",
         functions={"f": "spec:\n---\nrun:\n  - {name: e, step: ../echo, inputs: {message: m}}\n"},
         succeed={"a/e": {"message": "m"}, "a": {}}, failing="b", log=says("m", name="e")),
    case("outputs of steps around a function are not seen from inside", "docs#expressions",
         "- {name: o, step: ./echo, inputs: {message: m}}\n- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nrun:\n  - {name: e, script: 'echo ${{ steps.o.outputs.message }}'}\n"},
         succeed={"o": {"message": "m"}}, failing="a/e", log=says("m", name="o")),
    case("a later step of the same name has the outputs", "seen",
         "- {name: a, step: ./echo, inputs: {message: m}}\n- {name: a, step: ./echo, inputs: {message: n}}\n"
         "- {name: b, script: 'echo ${{ steps.a.outputs.message }}'}\n",
         succeed={"a": {"message": "n"}, "b": {}}, log=f"{says('m')}\n{says('n')}\n{says('n', name='b')}"),
    case("outputs are delegated to a step", "docs/create#delegate-outputs", "- {name: a, step: ./f}\n",
         functions={"f": "spec: {outputs: delegate}\n---\nrun:\n  - {name: e, step: ../echo, inputs: {message: m}}\n"
                         "delegate: e\n"},
         succeed={"a/e": {"message": "m"}, "a": {"message": "m"}}, log=says("m", name="e")),
    case("outputs are delegated twice", "tests/delegate", "- {name: a, step: ./g}\n",
         functions={"f": "spec: {outputs: delegate}\n---\nrun:\n  - {name: e, step: ../echo, inputs: {message: m}}\n"
                         "delegate: e\n",
                    "g": "spec: {outputs: delegate}\n---\nrun:\n  - {name: b, step: ../f}\ndelegate: b\n"},
         succeed={"a/b/e": {"message": "m"}, "a/b": {"message": "m"}, "a": {"message": "m"}}, log=says("m", name="e")),
    case("outputs are delegated to a step that is not there", "source: findOutputsWithName", "- {name: a, step: ./f}\n",
         functions={"f": "spec: {outputs: delegate}\n---\nrun: [{name: b, step: ../nowhere}]\ndelegate: e\n"}, failing="a"),
    case("a command delegates by writing a result", "source: ReadStepResult", "- {name: a, step: ./f}\n",
         functions={"f": writes('{"status":"success","outputs":{"x":[1]}}', spec="outputs: delegate")},
         succeed={"a": {"x": [1]}}, log='Running step "a"'),
    case("a command delegates, and writes no result", "source: ReadStepResult", "- {name: a, step: ./f}\n",
         functions={"f": writes("no", spec="outputs: delegate")}, failing="a", log='Running step "a"'),
)  # fmt: skip

ENVIRONMENT = (
    case("an export reaches the steps after it", "docs/create#export-environment-variables",
         "- {name: a, step: ./f}\n- {name: b, script: echo $FOO}\n", functions={"f": exports("FOO", '"bar baz"')},
         succeed="a b", exports={"a": {"FOO": "bar baz"}}, log='Running step "a"\nRunning step "b"\nbar baz'),
    case("an export is seen by expressions", "docs#exported-environment-variables",
         "- {name: a, step: ./f}\n- {name: b, step: ./echo, inputs: {message: 'FOO is ${{ env.FOO }}'}}\n",
         functions={"f": exports("FOO", '"BAR"')}, succeed={"a": {}, "b": {"message": "FOO is BAR"}},
         exports={"a": {"FOO": "BAR"}}, log='Running step "a"\nRunning step "b"\nFOO is BAR'),
    *(
        case(f"an export of {value}", "docs/create#export-environment-variables",
             "- {name: a, step: ./f}\n- {name: b, script: echo $FOO}\n", functions={"f": exports("FOO", value)},
             succeed="a b", exports={"a": {"FOO": text}}, log=f'Running step "a"\nRunning step "b"\n{text}')
        for value, text in (("7", "7"), ("7.50", "7.5"), ("true", "true"), ("false", "false"), ("1e-7", "0.0000001"))
    ),
    *(
        case(f"an export of {value} is refused", "docs/create#export-environment-variables", "- {name: a, step: ./f}\n",
             functions={"f": exports("FOO", value)}, failing="a", log='Running step "a"')
        for value in ("[1]", '{"a":1}', "null")
    ),
    case("an export goes before what the runner set", "docs#precedence",
         "- {name: a, step: ./f}\n- {name: b, script: echo $USER}\n", functions={"f": exports("USER", '"you"')},
         env={"USER": "me"}, succeed="a b", exports={"a": {"USER": "you"}},
         log='Running step "a"\nRunning step "b"\nyou'),
    case("env of a step goes before an export", "docs#precedence",
         "- {name: a, step: ./f}\n- {name: b, script: echo $USER, env: {USER: step}}\n",
         functions={"f": exports("USER", '"you"')}, succeed="a b", exports={"a": {"USER": "you"}},
         log='Running step "a"\nRunning step "b"\nstep'),
    case("env of a function goes before env of its step", "docs#precedence",
         "- {name: a, step: ./f, env: {USER: step}}\n", env={"USER": "me"},
         functions={"f": "spec:\n---\nenv: {USER: function}\nexec: {command: [sh, -c, 'echo $USER']}\n"},
         succeed="a", log=says("function")),
    case("env of a step goes before env of the function around it", "tests/env_precedence", "- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nenv: {USER: around}\nrun: [{name: b, script: 'echo $USER', env: {USER: step}}]\n"},
         succeed="a/b a", log=says("step", name="b")),
    case("env of a function goes before what the runner set", "tests/env_precedence", "- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nenv: {USER: around}\nrun: [{name: b, script: 'echo $USER'}]\n"},
         env={"USER": "me"}, succeed="a/b a", log=says("around", name="b")),
    case("env of a step is for that step", "docs#set-environment-variables-for-a-step",
         "- {name: a, script: 'echo <$USER>', env: {USER: a}}\n- {name: b, script: 'echo \"<$USER>\"'}\n".replace(
             "'echo <$USER>'", "'echo \"<$USER>\"'"),
         env={"USER": "me"}, succeed="a b", log='Running step "a"\n<a>\nRunning step "b"\n<me>'),
    case("env of a step is for all that it calls", "docs#set-environment-variables-for-a-step",
         "- {name: a, step: ./f, env: {USER: a}}\n",
         functions={"f": "spec:\n---\nrun: [{name: b, script: 'echo $USER'}]\n"}, succeed="a/b a",
         log=says("a", name="b")),
    case("env is evaluated", "tests/env_expansion", "- {name: a, step: ./f, env: {A: 'step ${{ env.USER }}'}}\n",
         env={"USER": "me"},
         functions={"f": "spec:\n---\nenv: {B: 'function ${{ env.A }}'}\nexec: {command: [sh, -c, 'echo $B']}\n"},
         succeed="a", log=says("function step me")),
    case("env of a function has its inputs", "docs/create#set-environment-variables",
         "- {name: a, step: ./f, inputs: {v: 5}}\n",
         functions={"f": "spec: {inputs: {v: {type: number}}}\n---\nenv: {V: '${{ inputs.v }}'}\n"
                         "exec: {command: [sh, -c, 'echo $V']}\n"}, succeed="a", log=says("5")),
    case("env of a step is not seen by its own inputs", "tests/env_referenced",
         "- {name: a, step: ./echo, env: {NAME: n}, inputs: {message: '${{ env.NAME }}'}}\n", failing="a"),
    case("numbers in env are taken as they are written", "seen", "- {name: a, script: echo $A $B, env: {A: 1.50, B: yes}}",
         succeed="a", log=says("1.50 yes")),
    case("a variable that is not there", "source: digMap", "- {name: a, script: 'echo ${{ env.NOT_THERE }}'}", failing="a"),
    case("variables of the job are not in the environment", "docs#environment-variables",
         "- {name: a, script: 'echo \"<$CI_THING>\"'}", variables={"CI_THING": "1"}, succeed="a", log=says("<>")),
    case("variables of the job are seen by expressions", "docs#available-context",
         "- {name: a, script: 'echo ${{ vars.CI_THING }}'}", variables={"CI_THING": "1"}, succeed="a", log=says("1"),
         differs=NAMES),
    case("variables of the job under their earlier name", "docs#rename-from-cicd-steps",
         "- {name: a, script: 'echo ${{ job.CI_THING }}'}", variables={"CI_THING": "1"}, succeed="a", log=says("1")),
    case("how much to say is info", "CHANGELOG 0.6.0", "- {name: a, script: echo $CI_STEPS_LOG_LEVEL}", succeed="a",
         log=says("info")),
    case("how much to say is what the job says", "CHANGELOG 0.6.0", "- {name: a, script: echo $CI_STEPS_LOG_LEVEL}",
         variables={"CI_STEPS_LOG_LEVEL": " DEBUG "}, succeed="a", log=says("debug")),
    case("how much to say is one of four", "source: global_env.go", "- {name: a, script: 'true'}",
         variables={"CI_STEPS_LOG_LEVEL": "loud"}),
    case("an export inside a function is seen after it", "docs/create#export-environment-variables",
         "- {name: a, step: ./g}\n- {name: b, script: echo $FOO}\n",
         functions={"f": exports("FOO", '"bar"'), "g": "spec:\n---\nrun: [{name: e, step: ../f}]\n"},
         succeed="a/e a b", exports={"a/e": {"FOO": "bar"}}, log='Running step "e"\nRunning step "b"\nbar'),
    case("an export inside a function goes before what the runner set, there too", "docs#precedence",
         "- {name: a, step: ./g}\n",
         functions={"f": exports("USER", '"you"'),
                    "g": "spec:\n---\nrun: [{name: e, step: ../f}, {name: b, script: echo $USER}]\n"},
         env={"USER": "me"}, succeed="a/e a/b a", exports={"a/e": {"USER": "you"}},
         log='Running step "e"\nRunning step "b"\nyou',
         differs="inside a function, what was set before it began hides exports"),
)  # fmt: skip

REFERENCES = (
    case("a path is relative to the function that has the step", "docs#load-from-the-file-system",
         "- {name: a, step: ./x/f}\n",
         functions={"x/f": "spec:\n---\nrun: [{name: b, step: ../g}, {name: c, step: ./h}]\n",
                    "x/g": "spec:\n---\nexec: {command: [echo, g]}\n", "x/f/h": "spec:\n---\nexec: {command: [echo, h]}\n"},
         succeed="a/b a/c a", log=f"{says('g', name='b')}\n{says('h', name='c')}"),
    case("a path may be absolute", "docs#load-from-the-file-system", "- {name: a, step: DIR/f}\n",
         functions={"f": "spec:\n---\nexec: {command: [echo, f]}\n"}, succeed="a", log=says("f")),
    case("a path may name the file", "docs#load-from-the-file-system", "- {name: a, step: ./f/dry-run.yml}\n",
         functions={"f/dry-run.yml": "spec:\n---\nexec: {command: [echo, dry]}\n"}, succeed="a", log=says("dry")),
    case("a path that leads nowhere", "docs#load-from-the-file-system", "- {name: a, step: ./nowhere}\n", failing="a"),
    case("a path may be an expression", "tests/stepref_dynamic",
         "- {name: a, step: ./f}\n- {name: b, step: '${{ env.REF }}'}\n",
         functions={"f": exports("REF", '"./g"'), "g": "spec:\n---\nexec: {command: [echo, g]}\n"},
         succeed="a b", exports={"a": {"REF": "./g"}}, log=f'Running step "a"\n{says("g", name="b")}'),
    case("a part of a path may be an expression", "CHANGELOG 0.10.0", "- {name: b, step: './${{ job.CI_F }}'}\n",
         variables={"CI_F": "g"}, functions={"g": "spec:\n---\nexec: {command: [echo, g]}\n"},
         succeed="b", log=says("g", name="b")),
    case("a function may be called func", "docs#rename-from-cicd-steps", "- {name: a, func: ./f}\n",
         functions={"f/func.yml": "spec:\n---\nexec: {command: [echo, '${{ func_dir }}']}\n"}, succeed="a",
         log=says("DIR/f"), differs=NAMES),
    case("the earlier name of the file is found as well", "gitlab-org/step-runner!339", "- {name: a, func: ./f}\n",
         functions={"f": "spec:\n---\nexec: {command: [echo, f]}\n"}, succeed="a", log=says("f"), differs=NAMES),
    case("a reference to nothing is refused", "source: short_reference.go", "- {name: a, step: nowhere}\n"),
    case("a function may call functions that call functions", "docs/create#run", "- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nrun: [{name: b, step: ../g}]\n", "g": "spec:\n---\nrun: [{name: c, step: ../h}]\n",
                    "h": "spec:\n---\nrun: [{name: d, script: pwd}]\n"},
         succeed="a/b/c/d a/b/c a/b a", log=says("DIR", name="d")),
    case("a step inside a function fails, and so does the function", "docs/create#run",
         "- {name: a, step: ./f}\n- {name: z, script: echo no}\n",
         functions={"f": "spec:\n---\nrun: [{name: b, script: 'echo b; exit 1'}, {name: c, script: echo no}]\n"},
         failing="a/b", log=says("b", name="b")),
    *(
        case(f"a file that is wrong: {what}", source, "- {name: a, step: ./f}\n", functions={"f": text}, failing="a",
             differs=LENIENT if "unknown" in what else "")
        for what, source, text in (
            ("exec and run", "source: schema/v1/step.go", "spec:\n---\nexec: {command: [a]}\nrun: []\n"),
            ("neither exec nor run", "source: schema/v1/step.go", "spec:\n---\nenv: {}\n"),
            ("one document", "docs/create#function-structure", "exec: {command: [echo]}\n"),
            ("an unknown key", "source: step.json", "spec:\n---\nexec: {command: [echo], workdir: /}\n"),
            ("an unknown key in spec", "source: spec.json", "spec: {input: {}}\n---\nexec: {command: [echo]}\n"),
            ("no command", "source: exec.go", "spec:\n---\nexec: {work_dir: /}\n"),
            ("a name with a hyphen", "docs#run-a-function-with-a-step", "spec:\n---\nrun: [{name: a-b, script: 'true'}]\n"),
            ("a key twice", "yaml.org/spec/1.2.2", "spec:\nspec:\n---\nexec: {command: [echo]}\n"),
            ("the key before run", "CHANGELOG 0.2.0", "spec:\n---\nsteps: []\n"),
            ("the type before 0.0.0", "CHANGELOG 0.0.0", "spec: {outputs: {a: {type: raw_string}}}\n---\nexec: {command: [echo]}\n"),
        )
    ),
    case("anchors and merged keys", "yaml.org/spec/1.2.2", "- {name: a, step: ./f}\n",
         functions={"f": "spec:\n---\nenv: &e {A: '1', B: '2'}\nrun:\n"
                         "  - {name: b, script: 'echo $A $B', env: {<<: *e, B: '3'}}\n"},
         succeed="a/b a", log=says("1 3", name="b")),
)  # fmt: skip

EXPRESSIONS = (
    expression("${{job.CI_A}}", "x y", variables={"CI_A": "x y"}, source="old docs"),
    expression("${{   job.CI_A   }}", "x", variables={"CI_A": "x"}, source="old docs"),
    expression("${{ job.CI_A }}${{ job.CI_A }}", "xx", variables={"CI_A": "x"}, source="source: interpolation.go"),
    expression("${{ work_dir }}", "DIR", source="docs#available-context"),
    expression("{{ job.CI_A }}", "{{ job.CI_A }}", differs="an end without a beginning is an error"),
    expression("{{ job.CI_A", "{{ job.CI_A", source="source: interpolation.go"),
    expression("${ job.CI_A }", "${ job.CI_A }", source="source: interpolation.go"),
    expression("$[[ inputs.a ]]", "$[[ inputs.a ]]", source="docs#expression-syntax"),
    expression("}} ${{ 1 }}", "}} 1", differs="an end without a beginning is an error"),
    expression(r"\${{ to start", "${{ to start", differs=MOA, source="docs/moa#escape-moa-expressions"),
    expression("${{ 1 + 2 * 3 }}", "7", differs=MOA),
    expression("${{ (1 + 2) * 3 }}", "9", differs=MOA),
    expression("${{ 10 / 4 }}", "2.5", differs=MOA),
    expression('${{ job.CI_A == "main" && "production" || "staging" }}', "production", variables={"CI_A": "main"},
               differs=MOA),
    expression('${{ job.CI_A || "latest" }}', "latest", variables={"CI_A": ""}, differs=MOA),
    expression('${{ str(1 + 1) + ".0.0" }}', "2.0.0", differs=MOA),
    expression('${{ [1, "b", {c: null}][2] }}', '{"c":null}', differs=MOA),
    expression('${{ job["CI_A"] }}', "x", variables={"CI_A": "x"}, differs=MOA),
    expression("${{ !false }}", "true", differs=MOA),
    *(
        case(f"the expression {text} is an error", source, f"- {{name: a, step: ./echo, inputs: {{message: '{text}'}}}}",
             **({"failing": "a"} if at_the_step else {}))
        for text, source, at_the_step in (
            ("${{ nothing.here }}", "tests/env_referenced", True),
            ("${{ work_dir.more }}", "source: value_type.go", True),
            ("${{ env.USER.more }}", "source: value_type.go", True),
            ("${{ job.CI_A }} ${{ env.USER", "source: interpolation.go", False),
        )
    ),
    case("what comes out is not evaluated again", "source: interpolation.go",
         "- {name: a, step: ./f}\n- {name: b, step: ./say, inputs: {value: '${{ steps.a.outputs.v }}'}}\n",
         functions={"f": writes('{"name":"v","value":"$\\u007b{ env.USER \\u007d\\u007d"}', spec="outputs: {v: {type: string}}"),
                    "say": SAY.replace("KIND", "string")},
         succeed={"a": {"v": "${{ env.USER }}"}, "b": {}},
         log='Running step "a"\nRunning step "b"\n<${{ env.USER }}>'),
)  # fmt: skip

CASES = (*COMMANDS, *SCRIPTS, *INPUTS, *OUTPUTS, *ENVIRONMENT, *REFERENCES, *EXPRESSIONS)
"""All of them; no two have the same name."""
