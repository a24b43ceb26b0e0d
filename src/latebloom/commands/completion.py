"""Print a script that completes commands and options in bash or zsh: eval "$(latebloom completion bash)"."""

from argparse import Namespace
from collections.abc import Iterator

from latebloom.arguments import Parser
from latebloom.commands import command_names, is_group, load_command

SCRIPT = """\
_latebloom() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} choices=
    if [ "$COMP_CWORD" = 1 ]; then
        choices="{commands} --help --version"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}} $current" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
}}
complete -o default -F _latebloom latebloom"""  # without a match, bash completes the name of a file
FOR_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell; put the line above into its startup file")


def run(options: Namespace) -> None:
    if options.shell == "zsh":
        print(FOR_ZSH)
    cases = [f"            {case}" for name in command_names() for case in _cases(name)]
    print(SCRIPT.format(commands=" ".join(command_names()), cases="\n".join(cases)))


def _cases(name: str) -> Iterator[str]:
    """Yield the cases of a command: the values of its options, its options, and the values of its arguments.

    The options of a group are those of all its commands.
    """
    commands = [f"{name} {inner}" for inner in command_names(name)] if is_group(name) else [name]
    if is_group(name):
        yield f'"{name} {name} "*) choices="{" ".join(command_names(name))} --help" ;;'
    actions = [action for command in commands for action in load_command(command)[0].actions]
    options = dict.fromkeys(option for action in actions for option in action.option_strings)
    for action in actions:
        if action.option_strings and action.nargs != 0:
            yield f'"{name} {action.option_strings[0]} "*) choices="{" ".join(action.choices or ())}" ;;'
    yield f'"{name} "*" -"*) choices="{" ".join(options)}" ;;'
    for action in actions:
        if action.choices and not action.option_strings:
            yield f'"{name} "*) choices="{" ".join(action.choices)}" ;;'
