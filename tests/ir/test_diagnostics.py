import pickle

import pytest

from edgerelax.ir.diagnostics import Report, ShapeError, UnsupportedError


def test_message_reads_top_down() -> None:
    error = ShapeError(
        "add: f32[2] and f32[3] do not broadcast", node="/a/Add", origin="m.onnx", hint="cast"
    )
    assert str(error) == (
        "add: f32[2] and f32[3] do not broadcast\n  /a/Add\n  from m.onnx\n  hint: cast"
    )
    assert error.code == "shape"
    assert ShapeError("x", code="rank").code == "rank"


def test_travels_between_processes() -> None:
    error = ShapeError("a", node="b", origin="c", hint="d", code="e")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.code) == (str(error), "e")


def test_report_tells_all_at_once() -> None:
    report = Report()
    for k in range(3):
        with report.collect():
            raise UnsupportedError(f"no operator {k}")
    assert len(report) == 3
    with pytest.raises(UnsupportedError) as caught:
        report.raise_if_any("m.onnx")
    assert str(caught.value) == (
        "m.onnx: 3 problems\n  no operator 0\n  no operator 1\n  no operator 2"
    )


def test_report_raises_the_gravest_kind() -> None:
    report = Report()
    report.raise_if_any("nothing is wrong")
    report.add(UnsupportedError("a"))
    report.add(ShapeError("b"))
    with pytest.raises(ShapeError, match="m: 2 problems"):
        report.raise_if_any("m")


def test_report_of_one_is_that_one() -> None:
    report = Report()
    problem = ShapeError("b", node="n")
    report.add(problem)
    with pytest.raises(ShapeError) as caught:
        report.raise_if_any("m")
    assert caught.value is problem


def test_report_lets_other_errors_through() -> None:
    with pytest.raises(ZeroDivisionError), Report().collect():
        raise ZeroDivisionError
