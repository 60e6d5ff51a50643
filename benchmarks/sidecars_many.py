"""300 jobs at once whose sidecars send a piece of the log each 3 s: the CPU of the service that they report through.

The service is whole: it has asked for the jobs, and holds their slots on instances of the plugin ``local`` and a tunnel
to each sidecar. Sidecars are shell scripts, which say what gitlab-runner says; they and GitLab are other processes.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time

import anyio
from _figures import report
from _needs import Need, run
from _sidecars import serving, upstream, works_of

from gitlab_jobs.client import GitLabClient
from taskscaler_gitlab._service import RunnerService
from taskscaler_gitlab.relay import RelayWork
from taskscaler_gitlab.relay._relay import Standing

JOBS = 300
PER_INSTANCE = 30
SECONDS = 30.0
INTERVAL = 3
"""Seconds between two pieces of a log, as GitLab asks for."""

SETTLE = 2 * INTERVAL

SIDECAR = r"""#!/bin/bash
[ "$1" = --version ] && { echo 'Version:      17.9.3'; exit; }
while IFS= read -r line; do
    value=${line#* = \"}; value=${value%\"}
    case $line in *url*=*) url=${value#http://} ;; *token*=*) secret=$value ;; esac
done < "$3"
place=${url%%/*} path=/${url#*/}/api/v4
trap '' PIPE
connect() { exec 3<> "/dev/tcp/${place%:*}/${place#*:}" || exit 1; }
connect
mkfifo "$PWD/never" 2> /dev/null; exec 4<> "$PWD/never"

call() {  # method, path, headers, body; again if the connection was closed, as it is after 15 s of silence
    local LC_ALL=C size=0 line tries=0
    while
        printf '%s %s HTTP/1.1\r\nHost: us\r\n%sContent-Length: %d\r\n\r\n%s' "$1" "$path/$2" "$3" "${#4}" "$4" >&3
        ! read -r -u 3 _ status _
    do
        [ $((tries++)) -lt 3 ] || exit 1
        connect
    done 2> /dev/null
    while read -r -u 3 line && [ "$line" != $'\r' ]; do
        case $line in
            [Cc]ontent-[Ll]ength:*) size=${line#*: } size=${size%$'\r'} ;;
            [Rr]ange:*) held=${line##*-} held=${held%$'\r'} ;;
        esac
    done
    body=
    [ "$size" = 0 ] || read -r -N "$size" -u 3 body
}

status=
while [ "$status" != 201 ]; do
    call POST jobs/request $'Content-Type: application/json\r\n' "{\"token\":\"$secret\",\"info\":{\"features\":{}}}"
done
[[ $body =~ \"id\":([0-9]+),\"token\":\"([^\"]+)\" ]] || exit 2
number=${BASH_REMATCH[1]} token=${BASH_REMATCH[2]}
printf -v piece 'a line of a log, as long as most\n%.0s' {1..62}
at=0
while :; do
    read -r -t INTERVAL -u 4
    range="Content-Range: $at-$((at + ${#piece} - 1))"
    call PATCH "jobs/$number/trace" "JOB-TOKEN: $token"$'\r\n'"$range"$'\r\n' "$piece"
    case $status in
        202) at=$((at + ${#piece})) ;;
        416) at=$held ;;
        5??) ;;  # again
        *) exit 3 ;;
    esac
done
"""


async def share() -> float:
    """Per cent of a core that the service takes once all jobs are at work."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "gitlab-runner")
        await anyio.Path(program).write_text(SIDECAR.replace("INTERVAL", str(INTERVAL)))
        await anyio.Path(program).chmod(0o755)
        async with upstream("gitlab", place, str(JOBS)) as said:
            url, token = said.split()
            async with serving(
                Path(place),
                GitLabClient(url),
                url=url,
                token=token,
                program=str(program),
                jobs=JOBS,
                per_instance=PER_INSTANCE,
            ) as service:
                return await _share(service)


async def _share(service: RunnerService) -> float:
    works: dict[int, RelayWork] = {}
    while _at_work(works) < JOBS:
        works |= {work.job.id: work for work in works_of(service)}
        _see_that_none_is_over(works)
        await anyio.sleep(1)
    await anyio.sleep(SETTLE)
    began, used = perf_counter(), process_time()
    await anyio.sleep(SECONDS)
    found = 100 * (process_time() - used) / (perf_counter() - began)
    _see_that_none_is_over(works)
    return found


def _at_work(works: Mapping[int, RelayWork]) -> int:
    return sum(work.record.standing is Standing.AT_WORK for work in works.values())


def _see_that_none_is_over(works: Mapping[int, RelayWork]) -> None:
    over = [work.record for work in works.values() if work.record.standing is Standing.OVER]
    if over:
        raise SystemExit(f"{len(over)} jobs have ended meanwhile, the first because {over[0].why or over[0].how}")


def main() -> None:
    """Measure it."""
    found = anyio.run(share)
    said = f"a piece of 2 kB each {INTERVAL} s of each; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    report("relay_300_jobs_cpu_pct", found, "%", 40, conditions=said)


BASH = Need("bash", "apt-get install bash", Path("/bin/bash").exists)

if __name__ == "__main__":
    run(main, BASH)
