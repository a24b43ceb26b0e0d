"""Print a script that completes commands and options in bash or zsh: eval "$(latebloom completion bash)"."""

from argparse import Namespace
from collections.abc import Iterator

from latebloom.arguments import Parser
from latebloom.commands import command_names, load_command

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


def _cases(command: str) -> Iterator[str]:
    """Yield the cases of a command: the values of its options, its options, and the values of its arguments."""
    parser, _ = load_command(command)
    options = [name for action in parser.actions for name in action.option_strings]
    for action in parser.actions:
        if action.option_strings and action.nargs != 0:
            yield f'"{command} {action.option_strings[0]} "*) choices="{" ".join(action.choices or ())}" ;;'
    yield f'"{command} "*" -"*) choices="{" ".join(options)}" ;;'
    for action in parser.actions:
        if action.choices and not action.option_strings:
            yield f'"{command} "*) choices="{" ".join(action.choices)}" ;;'
