"""No file from outside is ever run: the package holds no call that unpickles, evaluates or imports what a file says."""

import ast
import re
from pathlib import Path

import pytest

import resilisim

PACKAGE = Path(resilisim.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Modules whose readers run what they read.
RUNNING_MODULES = {"shelve", "marshal", "joblib", "dill", "cloudpickle", "pickletools"}
RUNNING_CALLS = {"eval", "exec", "compile", "execfile", "__import__"}
# What reads data when it is told so, and only then.
LOADERS = {
    ("numpy", "load"),
    ("np", "load"),
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "safe_load"),  # unfolds aliases, and takes `no` for false
    ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
    ("yaml", "load_all"),
}
# Words without which a file has none of all that; to parse every file takes seconds.
SUSPECT = re.compile(
    rf"{'|'.join(sorted(RUNNING_MODULES))}|pickle|(?<![\w.])(?:{'|'.join(sorted(RUNNING_CALLS))})\s*\("
    r"|\.load\b|_load\b|load_all|trust_remote_code|from_pretrained",
    re.IGNORECASE,
)
# Bytes that this very process made a moment ago: an error is tried before it travels to the parent process.
OWN_BYTES = {("processes.py", "loads")}


def words_of(holder):
    """Return what a method is called on; only names with dots are looked for."""
    names = []
    while isinstance(holder, ast.Attribute):
        names.append(holder.attr)
        holder = holder.value
    return ".".join([*([holder.id] if isinstance(holder, ast.Name) else ["?"]), *reversed(names)])


def calls(nodes):
    for node in nodes:
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                yield node, None, function.id
            elif isinstance(function, ast.Attribute):
                yield node, words_of(function.value), function.attr


def check(file):
    text = file.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text))) if SUSPECT.search(text) else []
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert not {name.partition(".")[0] for name in imported} & RUNNING_MODULES, file
    for node, holder, name in calls(nodes):
        where = f"{file}:{node.lineno}: {name}"
        assert holder is not None or name not in RUNNING_CALLS, where
        if holder == "pickle":
            assert name == "dumps" or (file.name, name) in OWN_BYTES, where
        assert not (holder or "").endswith("Unpickler"), where
        assert (holder, name) not in LOADERS, where
        for keyword in node.keywords:
            if keyword.arg in ("allow_pickle", "trust_remote_code"):
                assert isinstance(keyword.value, ast.Constant), where
                assert keyword.value.value is False, where
        if name == "from_pretrained" and holder is not None and "Model" in holder:
            assert any(keyword.arg in ("use_safetensors", "gguf_file") for keyword in node.keywords), where
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            assert not any("Unpickler" in ast.unparse(base) for base in node.bases), (file, node.name)


def test_no_file_of_the_package_runs_what_it_reads():
    assert len(FILES) > 200
    for file in FILES:
        check(file)


def test_what_runs_what_it_reads_is_noticed(tmp_path):
    for line in (
        "import shelve",
        "eval('1')",
        "pickle.loads(b'')",
        "numpy.load('x', allow_pickle=True)",
        "yaml.load('')",
    ):
        (tmp_path / "file.py").write_text(line)
        with pytest.raises(AssertionError):
            check(tmp_path / "file.py")
