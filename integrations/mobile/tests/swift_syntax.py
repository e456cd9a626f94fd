"""Parses the Swift files of a folder, where there is no Swift compiler: only their syntax is checked."""

import pathlib
import sys

import tree_sitter
import tree_sitter_swift

# An attribute of Swift 5.8 that UniFFI writes and the grammar lacks.
UNKNOWN = b"@_documentation(visibility: private)"


def errors(node):
    """The innermost nodes that are no syntax of Swift."""
    if not node.has_error:
        return
    inner = [found for child in node.children for found in errors(child)]
    yield from inner or [node]


def main():
    files = sorted(pathlib.Path(sys.argv[1]).rglob("*.swift"))
    if not files:
        sys.exit(f"no Swift files in {sys.argv[1]}")
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
    wrong = 0
    for path in files:
        # Spaces keep the places of what follows.
        source = path.read_bytes().replace(UNKNOWN, b" " * len(UNKNOWN))
        for node in errors(parser.parse(source).root_node):
            wrong += 1
            line, column = node.start_point
            print(f"{path}:{line + 1}:{column + 1}: {node.text.decode()[:80]!r}", file=sys.stderr)
    if wrong:
        sys.exit(f"{wrong} syntax errors")
    print(f"{len(files)} Swift files parse")


if __name__ == "__main__":
    main()
