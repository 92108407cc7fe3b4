"""What is found out about GPUs without TensorFlow."""

import sys

import pytest

from epl.cluster import gpus


@pytest.mark.parametrize(
    "text, answer",
    [
        ("build_info = collections.OrderedDict(is_cuda_build=False, x=1)", False),
        ("is_cuda_build = False", False),
        ("{'is_cuda_build': False}", False),
        ("is_cuda_build = True", True),
        ("", True),
        (None, True),
    ],
)
def test_tensorflow_knows_gpus(tmp_path, monkeypatch, text, answer):
    folder = tmp_path / "tensorflow_core" / "python" / "platform"
    folder.mkdir(parents=True)
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('must not be imported')")
    if text is not None:
        (folder / "build_info.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert gpus.tensorflow_knows_gpus.__wrapped__() is answer


@pytest.mark.parametrize(
    "chosen, seen",
    [
        (None, ["0", "1"]),
        ("", []),
        ("1", ["1"]),
        ("1, 0", ["1", "0"]),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("5", []),
        ("GPU-abc,1", ["GPU-abc", "1"]),
        ("0,0", ["0"]),
    ],
)
def test_visible_gpus(chosen, seen):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert gpus.visible_gpus(environ, total=2) == seen


def test_machine_gpus(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).write_text("")
    assert gpus.machine_gpus((str(tmp_path / "none[0-9]*"), str(tmp_path / "nvidia[0-9]*"))) == 2
    assert gpus.machine_gpus((str(tmp_path / "none[0-9]*"),)) == 0
