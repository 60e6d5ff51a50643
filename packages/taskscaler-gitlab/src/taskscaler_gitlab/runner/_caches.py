"""A job's caches, on the instance and on the manager: where they are, and how they are kept and found: pure.

On an instance, a cache is one archive, by project and key; it is replaced at once or not at all. The keys are the
project's to choose, so no path is made of one as it is.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from attrs import frozen

from gitlab_jobs import Cache, Job
from taskscaler_gitlab.runner._globs import FIND, Pattern, listing, read_patterns
from taskscaler_gitlab.runner._stages import When

LONGEST_KEY = 60
"""Characters of a key that its name shows."""

_POLICIES = ("pull-push", "pull", "push")
_PROTECTED = "-protected"
"""What GitLab ends the keys of protected branches with, whose caches other branches are not to have."""

BROUGHT = "caches"
"""Where the manager puts what it has kept, in the directory in which a leg begins."""


@frozen(kw_only=True)
class KnownCache:
    """One cache of a job."""

    number: int
    keys: tuple[str, ...]
    """By what it is found, in order; it is kept by the first."""

    patterns: tuple[Pattern, ...]
    untracked: bool
    pulls: bool
    pushes: bool
    when: When

    @property
    def names(self) -> tuple[str, ...]:
        """Names of files for its keys."""
        return tuple(map(name_of, self.keys))


def name_of(key: str) -> str:
    """A name for a file that no other key has."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", key)[:LONGEST_KEY]
    return f"{shown}-{sha256(key.encode(errors='surrogatepass')).hexdigest()[:16]}"


def caches_of(
    job: Job, expand: Callable[[str], str], project: str, fallback: str = ""
) -> tuple[list[KnownCache], list[str]]:
    """Read a job's caches; returns those that have a use, and what is wrong with others, a line each.

    Args:
        job: The job.
        expand: Puts in variables.
        project: The project's directory.
        fallback: The key that all caches fall back to, in the end; empty: none.
    """
    found, problems = [], []
    if fallback.rstrip(". ").endswith(_PROTECTED):
        problems.append(f"CACHE_FALLBACK_KEY {fallback}: a key that ends with {_PROTECTED} is not fallen back to")
        fallback = ""
    for number, cache in enumerate(job.cache):
        patterns, outside = read_patterns(cache.paths, expand, project)
        problems += [f"cache path {path} is not in the project's directory, and left out" for path in outside]
        if not patterns and not cache.untracked:
            continue
        wanted = (*map(expand, (cache.key or "default", *cache.fallback_keys)), fallback)
        policy = expand(cache.policy) or "pull-push"
        if policy not in _POLICIES:
            problems.append(f"cache policy {policy}: expected {', '.join(_POLICIES)}; the cache is not used")
            continue
        found.append(_cache(number, cache, tuple(dict.fromkeys(filter(None, wanted))), patterns, policy))
    return found, problems


def _cache(number: int, cache: Cache, keys: tuple[str, ...], patterns: Sequence[Pattern], policy: str) -> KnownCache:
    return KnownCache(
        number=number,
        keys=keys or ("default",),
        patterns=tuple(patterns),
        untracked=cache.untracked,
        pulls=policy != "push",
        pushes=policy != "pull",
        when=When.of(cache.when),
    )


def restore_script(caches: Iterable[KnownCache], directory: str, *, cleans_up: bool = False) -> str:
    """Write what brings caches back, in the project's directory; the argument is where a leg begins.

    Args:
        caches: Which.
        directory: Where they are.
        cleans_up: Whether what came of one is removed if it cannot be unpacked to its end.
    """
    lines = [FIND] if cleans_up else []
    lines.append(_RESTORE.replace("@DIRECTORY@", shlex.quote(directory)))
    for cache in caches:
        lines += [_forget(cache)] if cleans_up else []
        pairs = zip(cache.names, cache.keys, strict=True)
        lines.append(f"_t_restore {' '.join(f'{name} {shlex.quote(key)}' for name, key in pairs)}")
    return "\n".join(lines)


def _forget(cache: KnownCache) -> str:
    """Write a function that removes what a cache is made of."""
    listed = listing(cache.patterns, (), untracked=False)
    return f"_t_forget() {{ {listed} 2>/dev/null | tr '\\n' '\\000' | xargs -0 rm -rf --; }}"


def archive_script(caches: Iterable[KnownCache], directory: str, *, brings: bool) -> str:
    """Write what keeps caches; *brings* says that the manager keeps them too."""
    lines = [FIND, _ARCHIVE.replace("@DIRECTORY@", shlex.quote(directory))]
    for cache in caches:
        listed = listing(cache.patterns, (), untracked=cache.untracked)
        lines.append(f'{listed} > "$1/list" 2> "$1/missing"')
        target = f'"$1/out/cache-{cache.number}.tar"' if brings else "''"
        lines.append(f'_t_keep {cache.names[0]} {shlex.quote(cache.keys[0])} "$1" {target}')
    return "\n".join([*lines, "exit $_t_failed"])


_RESTORE = f"""
_t_caches=@DIRECTORY@ _t_brought=$1/{BROUGHT}
_t_forget() {{ :; }}
_t_restore() {{
    while [ $# -gt 0 ]; do
        printf 'Checking cache for %s...\\n' "$2"
        for _t_file in "$_t_caches/$1/cache.tar" "$_t_brought/$1.tar"; do
            [ -f "$_t_file" ] || continue
            if tar -xf "$_t_file"; then
                echo 'Successfully extracted cache'
                return
            fi
            printf '\\033[0;33mWARNING: the cache %s could not be extracted\\033[0;m\\n' "$2"
            _t_forget
        done
        shift 2
    done
    echo 'No cache was found'
}}
"""

_ARCHIVE = """
_t_caches=@DIRECTORY@ _t_failed=0
_t_keep() {
    printf 'Creating cache %s...\\n' "$2"
    while IFS= read -r _t_line; do
        printf '\\033[0;33mWARNING: %s: no matching files\\033[0;m\\n' "$_t_line"
    done < "$3/missing"
    if [ ! -s "$3/list" ]; then
        echo 'No files to cache'
        return
    fi
    _t_draft=$_t_caches/$1/draft-$$
    if mkdir -p "$_t_caches/$1" && { _t_tar "$_t_draft" "$3/list" || [ $? -eq 1 ]; } &&
        { [ ! "$4" ] || cp "$_t_draft" "$4"; } && mv -f "$_t_draft" "$_t_caches/$1/cache.tar"
    then
        printf 'Created cache: %s files\\n' "$(wc -l < "$3/list" | tr -d ' ')"
    else
        rm -f "$_t_draft"
        _t_failed=1
        printf '\\033[0;33mWARNING: the cache %s could not be kept\\033[0;m\\n' "$2"
    fi
}
"""
