"""What a newcomer runs first: the demo, the notebook and the examples of the README and the docstring."""

import doctest
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

import backends

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.backends("host", "fake")

#: runs `python -m umem demo` in this interpreter
DEMO = """
import runpy, sys
sys.argv = ["umem", "demo"]
runpy.run_module("umem", run_name="__main__", alter_sys=True)
"""

#: before it: the library `library` is as good as not installed
WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


class TestDemo:
    def test_trains_on_the_memory_that_everybody_sees(self, umem, run_python):
        pytest.importorskip("torch")
        done = run_python(DEMO, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        out = done.stdout
        assert out.startswith(f"umem {umem.__version__}, {umem.info()['backend']} backend: ")

        images, weights = self.addresses(out)
        for group in (images, weights):
            assert list(group) == ["umem", "NumPy", "PyTorch (cpu)"]
            assert len(set(group.values())) == 1
        assert images["umem"] != weights["umem"]

        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", out)]
        assert len(losses) > 4
        assert losses[0] > 1
        assert losses[-1] < 0.1
        shown = re.findall(r"some weights \[(.*)\]", out)
        assert len(set(shown)) == len(losses)  # they change during the training

        accuracy = float(re.search(r"accuracy .*: (\d+\.\d)%", out)[1])
        assert 93 <= accuracy <= 100

    @staticmethod
    def addresses(out: str) -> list[dict[str, int]]:
        """Who sees the array at which address, for each array that is shown."""
        groups = re.findall(r"seen by\n((?:  \S.* at 0x[0-9a-f]+\n)+)", out)
        lines = [re.findall(r"  (\S.*?) +at (0x[0-9a-f]+)\n", group) for group in groups]
        return [{who: int(address, 16) for who, address in group} for group in lines]

    @pytest.mark.backends("host")
    @pytest.mark.parametrize("library", ["torch", "sklearn"])
    def test_says_which_library_is_missing(self, run_python, library):
        done = run_python(f"library = {library!r}{WITHOUT}{DEMO}", check=False)
        assert done.returncode == 2
        assert library in done.stderr
        assert "pip install" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.backends("host")
    def test_a_bad_classifier_is_a_failure(self, umem, monkeypatch, capsys):
        pytest.importorskip("torch")
        from umem import _demo

        monkeypatch.setattr(_demo, "EPOCHS", 1)
        assert _demo.main() == 1
        assert float(re.search(r"accuracy .*: (\d+\.\d)%", capsys.readouterr().out)[1]) < 93


class TestNotebook:
    """With a kernel where nbclient and ipykernel are installed, else its cells one after the other."""

    def test_runs(self, run_python, backend):
        pytest.importorskip("torch")
        notebook = json.loads(NOTEBOOK.read_text())
        code = [
            "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"
        ]
        assert len(code) > 5
        if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
            out = self.run_in_a_kernel(backend)
            assert "umem.array([[" in out  # the last expression of a cell is shown
        else:
            out = run_python("\n".join(code))
        for text in ("NumPy", "PyTorch, cpu", "epoch 99", "digits never seen are recognised"):
            assert text in out
        assert len(set(re.findall(r"(0x[0-9a-f]+)  \S", out))) == 1
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", out)]
        assert losses == sorted(losses, reverse=True)

    @staticmethod
    def run_in_a_kernel(backend: str) -> str:
        """What the cells print and show as text."""
        import nbclient
        import nbformat

        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **backends.environment(backend), "PYTHONPATH": path}
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3")
        client.execute(env=environment, cwd=str(NOTEBOOK.parent))
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert [o for o in outputs if o.get("name") == "stderr"] == []
        assert any("text/html" in o.get("data", {}) for o in outputs)  # an array is shown as HTML
        texts = [o["text"] if "text" in o else o["data"]["text/plain"] for o in outputs]
        return "\n".join(texts)

    def test_is_committed_without_outputs(self):
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == []
                assert cell["execution_count"] is None


def readme_blocks() -> list[tuple[str, str]]:
    """The language and the text of each block of code in the README."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)


class TestExamples:
    def test_the_readmes_first_example_prints_what_it_says(self, run_python, on_gpu):
        pytest.importorskip("torch")
        blocks = readme_blocks()
        first = next(i for i, (language, _) in enumerate(blocks) if language == "python")
        (_, example), (language, output) = blocks[first : first + 2]
        assert language == ""
        if on_gpu:  # umem has a GPU there and PyTorch has none
            example = example.replace("torch.as_tensor(a)", 'torch.from_dlpack(a.on("cpu"))')
        assert run_python(example) == output

    def test_the_readmes_other_examples_run(self, run_python):
        others = [text for language, text in readme_blocks() if language == "python"][1:]
        assert len(others) >= 3
        run_python("\n".join(["import numpy as np, umem", *others]))

    @pytest.mark.backends("fake")
    def test_the_readmes_residency_is_right(self, run_python):
        example = next(text for _, text in readme_blocks() if "a.residency()" in text)
        said = re.search(r"print\(a\.residency\(\)\) *# ([^(\n]*)", example)[1].strip()
        assert run_python(f"import umem\n{example}").splitlines()[0] == said

    @pytest.mark.backends("host")
    def test_the_packages_docstring_shows_what_happens(self, umem):
        pytest.importorskip("torch")
        examples = doctest.DocTestParser().get_doctest(umem.__doc__, {}, "umem", "__init__.py", 0)
        assert examples.examples
        said = []
        doctest.DocTestRunner(verbose=False).run(examples, out=said.append)
        assert said == []


class TestReadme:
    """What it names is there."""

    def test_the_commands(self):
        makefile = (ROOT / "Makefile").read_text()
        commands = set(re.findall(r"\bmake ([a-z-]+) +#", README))
        assert commands >= {"demo", "test"}
        for target in commands:
            assert re.search(rf"^{target}:", makefile, re.M), target

    def test_the_functions(self, umem):
        names = set(re.findall(r"\bumem\.([a-z_]\w*)\(", README))
        assert names
        for name in names:
            assert hasattr(umem, name), name

    def test_the_links(self):
        links = re.findall(r"\]\(([^)#:]+)\)", README)
        assert links
        for target in links:
            assert (ROOT / target).exists(), target

    def test_the_variables(self):
        sources = [ROOT / "setup.py", ROOT / "Makefile", *(ROOT / "src").rglob("*.[ch]")]
        for folder in ("umem", "tools"):
            sources += (ROOT / folder).rglob("*.py")
        text = "".join(path.read_text() for path in sources)
        variables = set(re.findall(r"\bUMEM_[A-Z_]+\b", README))
        assert variables
        for name in variables:
            assert name in text, name


def test_a_copy_is_noticed(umem, capsys):
    """The demo fails where the libraries do not share the memory."""
    torch = pytest.importorskip("torch")
    import importlib

    demo = importlib.import_module("umem._demo")
    a = umem.ones(5)
    assert demo.same_addresses(a, torch.from_dlpack(a.on("cpu")))
    assert not demo.same_addresses(a, torch.ones(5))
    assert "one address" in capsys.readouterr().err
