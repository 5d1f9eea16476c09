"""A click group that imports a command when it is used: `datacoord --help` takes as long as Python needs to start."""

import importlib
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group whose commands are named as `module:attribute`, and which says typed errors as one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy: dict[str, tuple[str, str]] = {}

    def add_lazy(self, name: str, target: str, short_help: str) -> None:
        """Registers a command.

        Args:
            name: as typed.
            target: `module:attribute` of the click command.
            short_help: its line in the list of commands; the module is not imported for it.
        """
        self._lazy[name] = (target, short_help)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order in which they were registered."""
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a command."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the command that was meant where there is none of the name: click knows those only that are imported."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Completes names of commands without importing them: a shell asks at every press of the key."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=short_help)
            for name, (_, short_help) in self._lazy.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists commands with their registered line."""
        rows = [
            (name, command.get_short_help_str()) for name in self.commands if (command := self.get_command(ctx, name))
        ]
        rows += [(name, short_help) for name, (_, short_help) in self._lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; a typed error becomes a sentence and an exit code, never a traceback."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            from datacoord.errors import DatacoordError

            if not isinstance(error, DatacoordError):
                raise
            click.echo(f"datacoord: {error.message} ({error.reason.value})", err=True)
            sys.exit(exit_code(error))


def exit_code(error: Exception) -> int:
    """2 for what the person who typed the command can mend in it, as click does for wrong usage; else 1."""
    from datacoord.errors import ConfigInvalidError, InvalidFieldError

    return 2 if isinstance(error, ConfigInvalidError | InvalidFieldError) else 1
