"""The command line of compare.py."""

import argparse
import re
import sys
from pathlib import Path

from cases import all_cases
from machine import facts, sets
from peers import HELD, PEERS, peers_of
from table import DTYPES

# What a run without them measures.
DEFAULTS = {"only": None, "peers": None, "threads": [1, 2], "dtypes": list(DTYPES), "rounds": 7}


class Parser(argparse.ArgumentParser):
    """Wrong input gives one line and exit code 2."""

    def error(self, message):
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}")


def arguments(documentation):
    parser = Parser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", required=True, type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--only", type=pattern, metavar="REGEX", help="cases whose name it matches somewhere")
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="PEER", help=f"some of: {', '.join(PEERS)}")
    parser.add_argument("--threads", type=positive, nargs="+", help="default: 1 2")
    parser.add_argument("--dtypes", nargs="+", choices=DEFAULTS["dtypes"], help="default: all")
    parser.add_argument("--rounds", type=positive, help="turns per side (default: 7)")
    parser.add_argument("--isa", choices=HELD, help="hold all sides to it; a peer that cannot be is left out if the processor has more")
    parser.add_argument("--rust-peers", action="store_true", help="also the peers of benches/rust-peers, built first")
    parser.add_argument("--llama-cpp", action="store_true", help="also llama.cpp, built first by pip, which takes minutes")
    parser.add_argument("--memory", action="store_true", help="measure the peak of memory instead of time")
    parser.add_argument("--write", action="store_true", help="write a partial run too, merged row by row")
    options = parser.parse_args()
    if not (options.minilm / "model.safetensors").exists():
        parser.error(f"{options.minilm} holds no model.safetensors")
    left_out = [name for name, peer in PEERS.items() if peer.option and not getattr(options, peer.option)]
    for name in options.peers or []:
        if name in left_out:
            parser.error(f"{name}: needs --{PEERS[name].option.replace('_', '-')}")
    if options.isa and set(sets(facts())) - {options.isa}:
        free = [name for name, peer in PEERS.items() if not peer.can_be_held]
        if refused := [name for name in options.peers or [] if name in free]:
            parser.error(f"{', '.join(refused)}: cannot be held to {options.isa}, and this processor has more")
        left_out += free
    options.partial = any(getattr(options, name) is not None for name in DEFAULTS)
    for name, value in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.minilm = options.minilm.resolve()
    options.cases = [case for case in all_cases() if not options.only or options.only.search(case.name)]
    if not options.cases:
        examples = "'layer 1×128×768', 'BERT-base 1×32', 'texts'"
        parser.error(f"--only: no case's name matches {options.only.pattern!r}; these would: {examples}")
    options.peers = options.peers or [name for name in PEERS if name not in left_out]
    if not any(peers_of(case, dtype, options.peers) for case in options.cases for dtype in options.dtypes):
        parser.error("none of these peers runs any of these cases in these dtypes")
    return options
