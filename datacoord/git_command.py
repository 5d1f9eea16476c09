"""How Datacoord starts git: plumbing only, on one named repository, deaf to everything around it.

Reading somebody's repository must not run what that repository, the user or the machine has configured, must not answer
differently on another machine, and must not touch the network. Therefore:

- `--git-dir` names the repository. Git then neither searches upwards (a path inside a repository is not that repository) nor asks
  who owns the directory (`safe.directory`), which is right here because nothing below can run code of the repository;
- system and user configuration, replacement objects, grafts, hooks, pagers, traces and the caller's `GIT_…` variables are out;
- no protocol is allowed: a partial clone that lacks an object says so instead of fetching.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from datacoord.errors import SourceInvalidError, SourceUnavailableError

_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.devnull)
_ANSWER_SECONDS = 300
"""A question about a repository is answered within this time, also by a cold disk; only a hanging file system takes longer."""


def locate_git_dir(repository: str | os.PathLike[str]) -> str:
    """Finds the directory git keeps its data in.

    Args:
        repository: the top directory of a work tree, or a bare repository; what this function returned is good too.

    Returns:
        an absolute path for `--git-dir`.

    Raises:
        SourceInvalidError: there is no repository at exactly this path.
    """
    path = Path(os.path.abspath(os.path.expanduser(repository)))
    if (path / ".git").exists():
        return str(path / ".git")
    if path.name == ".git" and path.is_file():  # of a linked work tree or a submodule: a pointer git follows
        return str(path)
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return str(path)
    what = "is not a git repository" if path.is_dir() else "is not a directory"
    raise SourceInvalidError(
        f"{str(path)!r} {what}: name the top directory of a git work tree, or a bare repository", repository=path
    )


def start_git(
    git_dir: str, arguments: Sequence[str], *, stdin: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a git command whose standard output is read through a pipe while it runs.

    It gets a session of its own, so that Ctrl-C in a terminal ends the datanode in order and not its reader first; it ends by
    itself (SIGPIPE) when this process is gone.

    Raises:
        SourceInvalidError: git is not installed.
        SourceUnavailableError: the process could not be started.
    """
    try:
        return subprocess.Popen(
            ["git", *_OPTIONS, f"--git-dir={git_dir}", *arguments],
            env=git_environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise SourceInvalidError(
            "git was not found on PATH: install git 2.31 or newer on every machine that reads"
        ) from error
    except OSError as error:
        raise SourceUnavailableError(f"git could not be started: {error}", detail=error) from error


def run_git(git_dir: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Runs a git command to its end; what its exit status means is the caller's to say.

    Raises:
        SourceInvalidError: git is not installed.
        SourceUnavailableError: the process could not be started, or did not end in time.
    """
    try:
        return subprocess.run(
            ["git", *_OPTIONS, f"--git-dir={git_dir}", *arguments],
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise SourceInvalidError(
            "git was not found on PATH: install git 2.31 or newer on every machine that reads"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailableError(
            f"git did not answer within {_ANSWER_SECONDS} s: check the file system that holds {git_dir!r}",
            git_dir=git_dir,
        ) from error
    except OSError as error:
        raise SourceUnavailableError(f"git could not be started: {error}", detail=error) from error


def git_environment() -> dict[str, str]:
    """The environment git runs in: this process's, without its `GIT_…` variables, with ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return inherited | _ENVIRONMENT
