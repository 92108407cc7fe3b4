"""The rules of scripts/check_house.py find what they are about, and nothing else."""

import importlib.util
import os

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("check_house", os.path.join(ROOT, "scripts", "check_house.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "source",
    [
        "_FLOAT32 = 1",
        "_BOOL, _INT32 = 10, 3",
        "x = variable.dtype == 9",
        "x = facts.dtype(tensor) in (3, 9)",
        "x = node('Where', T=Type(10))",
        "x = known.dtype % 100",
    ],
)
def test_numbers_of_data_types_are_found(house, source):
    assert list(house.table_problems("epl/plan/plan.py", source, {})) == [
        "epl/plan/plan.py:1: a DataType number; use its name of epl/graph/types.py"
    ]
    assert not list(house.table_problems("epl/graph/types.py", source, {}))


@pytest.mark.parametrize(
    "source",
    ["_FLOAT_BYTES = 4", "x = variable.dtype == INT64", "x = len(dtypes) == 1", "x = count % 100", "INT = 'a'"],
)
def test_other_numbers_pass(house, source):
    assert not list(house.table_problems("epl/plan/plan.py", source, {}))


@pytest.mark.parametrize(
    "source", ["x = node.name.startswith('epl_')", "x = [n for n in names if name.endswith('/read')]"]
)
def test_facts_that_are_read_off_names_are_found(house, source):
    (found,) = house.fact_problems("epl/passes/copies/clone.py", source)
    assert found == "epl/passes/copies/clone.py:1: a fact that is read off a name; make it a tag of the node"
    assert not list(house.fact_problems("epl/plan/report/plan_table.py", source))
    assert not list(
        house.fact_problems("epl/passes/a.py", "x = node.op.startswith('Apply') or key.startswith('_epl_')")
    )


@pytest.mark.parametrize(
    "source, problem",
    [
        (
            'X = frozenset(["ReadVariableOp", "Identity"])',
            "the operation types of tensors.READS of epl/rules; use that",
        ),
        ('X = node.op in ("Switch", "RefSwitch")', "the operation types of effects.SWITCHES of epl/rules; use that"),
        ('X = frozenset("Shape ShapeN Size Rank".split())', "the operation types of tensors.SHAPE_ONLY of epl/rules"),
        ('X = ["Identity", "Tanh"]', "a table of what hands tensors on; it belongs into epl/rules"),
    ],
)
def test_tables_of_operation_types_are_found(house, source, problem):
    (found,) = house.table_problems("epl/plan/plan.py", source, house.tables())
    assert problem in found
    assert not list(house.table_problems("epl/rules/tensors.py", source, house.tables()))


@pytest.mark.parametrize(
    "source", ['X = tensors.READS | {"Cast"}', 'X = ["Identity"]', 'X = ("Tanh", "Switch")', "X = ()"]
)
def test_other_collections_pass(house, source):
    assert not list(house.table_problems("epl/plan/plan.py", source, house.tables()))
