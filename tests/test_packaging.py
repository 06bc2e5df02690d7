"""What is installed: all libraries that are imported are declared, all templates shipped."""

import ast
import fnmatch
import re
import sys
from importlib import metadata

OPTIONAL = {"libtpu", "wandb"}  # extras


def declared() -> set[str]:
    required = [r for r in metadata.requires("cpgd_jax") if "extra ==" not in r]
    return {re.match(r"[\w.-]+", r)[0].lower().replace("_", "-") for r in required}


def imported(folder) -> set[str]:
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    return found


def test_every_import_is_declared(repo):
    names = (
        imported(repo / "cpgd_jax") | imported(repo / "experiments") | imported(repo / "configs")
    )
    ours = {"cpgd_jax", "configs", "experiments"}
    of = metadata.packages_distributions()
    # google.protobuf and latex2sympy2_extended come with what is declared beside them in setup.py
    others = names - ours - OPTIONAL - set(sys.stdlib_module_names) - {"google"}
    missing = {
        name
        for name in others
        if not {d.lower().replace("_", "-") for d in of.get(name, [name])} & declared()
    }
    assert missing <= {"latex2sympy2_extended", "ml_dtypes"}, missing


def test_every_template_is_shipped(repo):
    patterns = (repo / "setup.py").read_text(encoding="utf-8")
    folders = re.search(r"package_data=\{(.*?)\}", patterns)[1]
    shipped = {
        (package.replace(".", "/"), pattern)
        for package, pattern in re.findall(r'"([\w.]+)": \["([^"]+)"\]', folders)
    }
    files = [
        f for f in (repo / "cpgd_jax").rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")
    ]
    assert files
    for file in files:
        place = file.parent.relative_to(repo).as_posix()
        assert any(place == p and fnmatch.fnmatch(file.name, g) for p, g in shipped), file
