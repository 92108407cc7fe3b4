"""The search for a plan: what there is to choose from, what is chosen and why, and what people get of it."""

import html.parser
import json
from types import SimpleNamespace

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.cluster.machine import NOMINAL, machine
from epl.config import Config
from epl.env import Env
from epl.errors import PlanError
from epl.search import shown
from epl.search.quick import Line, Quick
from epl.search.search import Found, Priced, is_wanted, machine_for, search, values_of
from epl.search.space import CHOSEN, Choice, Space
from epl.session.chosen import choose_plan
from epl.session.front_ends import preview
from tests.helpers import planning
from tests.helpers.machines import simple_machine
from tests.helpers.planning import capture, variable

SLOW_LINK = simple_machine(1e9, 1e9, link=1e5)
FAST_LINK = simple_machine(1e9, 1e9, link=1e12)


def mlp(layers=4, width=64, x=None):
    x = tf.placeholder(tf.float32, [None, width]) if x is None else x
    for i in range(layers):
        x = tf.tanh(tf.matmul(x, variable("w%d" % i, (width, width))) + variable("b%d" % i, (width,)))
    tf.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.square(x)))


def of_data():
    mlp(x=planning.batch(8, 64))


def captured(build=mlp):
    with capture() as graph:
        build()
    return make_program(graph)


def found_for(build=mlp, workers=1, devices=4, on=FAST_LINK, batch=64, limit=None, **keys):
    config = Config({key.replace("__", "."): value for key, value in keys.items()}, {})
    program = captured(build)
    return program, config, search(program, config, planning.cluster(workers, devices), on, batch, limit)


def space(config=None, workers=2, devices=4, own=None, total_rows=64, num_rounds=None, **others):
    config = config or Config({}, {})
    place = planning.cluster(workers, devices)
    return Space(config, config.given.intersection(CHOSEN), place, own, total_rows, num_rounds, **others)


def test_every_choice_leaves_the_rows_of_a_step_as_they_are():
    choices = space().choices()
    assert len(choices) == len(set(choices)) > 100
    assert all(c.rows * c.replicas * c.micro_batches == 64 and c.replicas * c.stages == 8 for c in choices)
    assert {c.stages for c in choices} == {1, 2, 4, 8} and {c.chunks for c in choices} == {1, 2}
    of_rounds = space(total_rows=None, num_rounds=8).choices()
    assert {(c.replicas, c.micro_batches) for c in of_rounds} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert {c.stages for c in space(over_workers=False).choices()} == {1, 2, 4}


def test_what_is_set_stays():
    config = Config({"zero.level": "v1", "pipeline.num_micro_batch": 2, "gradient_checkpoint.type": ""}, {})
    choices = space(config).choices()
    assert {(c.zero, c.micro_batches, c.recomputes) for c in choices} == {("v1", 2, False)}
    config = Config({"auto.auto_parallel": True, "pipeline.num_stages": 2, "pipeline.strategy": "PreferForward"}, {})
    assert {(c.stages, c.chunks, c.schedule) for c in space(config).choices()} == {(2, 1, "PreferForward")}
    assert {c.stages for c in space(Config({"auto.auto_parallel": False}, {})).choices()} == {1}
    assert {(c.replicas, c.stages) for c in space(own=(2, 4, 1)).choices()} == {(2, 4)}


def test_sixteen_bits_are_chosen_only_where_the_user_lets_it():
    assert {c.amp for c in space().choices()} == {""}
    assert {c.amp for c in space(can_amp=True).choices()} == {"", "O1"}


def test_keys_of_a_choice():
    made = space()
    keys = made.keys(Choice(2, 4, micro_batches=4, zero="v1", recomputes=True))
    assert keys["auto.auto_parallel"] and keys["pipeline.num_stages"] == 4 and keys["zero.level"] == "v1"
    assert keys["gradient_checkpoint.type"] == "auto" and set(keys) <= set(CHOSEN)
    plain = made.config.replaced(made.keys(Choice(8)))
    assert plain == made.config and not plain.given


def test_a_first_glance():
    """A model of 1 s a row, 10 bytes a row, 8 bytes of variables: by hand."""
    line = Line(4, 4.0, 1.0, 0.5, 40.0, 10.0, {"variables": 8, "slots": 16, "other variables": 0})
    quick = Quick({(False, ""): line}, planning.cluster(1, 4), simple_machine(link=8.0))
    seconds, size = quick.of(Choice(1, rows=4))
    assert (seconds, size) == (4.5, 64.0)
    assert quick.of(Choice(1, rows=8))[0] == 8.5
    # Four copies: 2 * 3/4 * 8 bytes over 8 bytes a second, hidden behind two thirds of the pass.
    assert quick.of(Choice(4, rows=1)) == (pytest.approx(1.5 + 1.5 - 2.0 / 3), 34.0)
    assert quick.of(Choice(4, rows=1, zero="v1"))[1] == 8 + 16 / 4 + 10
    # Two stages, two micro-batches: one more is waited for, and both are alive.
    pipeline = Choice(2, 2, micro_batches=2, rows=1)
    gradients = 8 / 2 / 8.0  # within the backward pass
    assert quick.of(pipeline) == (pytest.approx(2 * 0.5 + 0.25 + max(0, gradients - 1.0 / 3) + 0.5), 4 + 8 + 2 * 5 + 4)


@pytest.mark.parametrize("on, stages", [(FAST_LINK, {1}), (SLOW_LINK, {2, 4})])
def test_costs_decide(on, stages):
    """Where the link is slow, gradients take longer than the tensors that cross between stages."""
    _, _, found = found_for(on=on)
    assert found.best.choice.stages in stages
    assert found.why_not(found.best) == "chosen" and found.best.estimate.machine == "simple"
    made = [plan for plan in found.plans if plan.refused is None]
    assert min(plan.row_s for plan in made) * 1.02 >= found.best.row_s


def test_every_plan_that_is_printed_compiles():
    program, config, found = found_for(workers=2, devices=2, zero__level="v1", batch=32)
    made = [plan for plan in found.plans if plan.refused is None]
    assert len(made) > 5
    for plan in made[:8]:
        done = planning.compiled(program, 2, 2, **{k.replace(".", "__"): v for k, v in plan.values.items()})
        assert done.plan.mesh.shape["data"] == plan.choice.replicas
        assert set(values_of(plan, config)).issuperset(["zero.level"])  # it is set


def test_the_same_is_found_again():
    first, second = [found_for(on=SLOW_LINK)[2] for _ in range(2)]
    assert [(p.choice, p.row_s) for p in first.plans] == [(p.choice, p.row_s) for p in second.plans]


def test_a_memory_limit_is_kept_and_told():
    _, _, free = found_for()
    limit = free.best.peak_bytes - 1
    _, _, found = found_for(limit=limit)
    assert found.best.peak_bytes <= limit < free.best.peak_bytes
    too_large = [plan for plan in found.plans if plan.refused is None and not found.fits(plan)]
    assert too_large and "does not fit: " in found.why_not(too_large[0])
    with pytest.raises(PlanError) as raised:
        found_for(limit=1000, gradient_checkpoint__type="")
    told = str(raised.value)
    assert "No plan fits into 1000 bytes of a device. The smallest (" in told and "too much. What would help: " in told
    assert "leaving to the search what is set: gradient_checkpoint.type" in told and "more devices" in told


def test_the_limit_follows_from_the_machine_or_the_key():
    sizes = [
        found_for(on=on, **keys)[2].limit_bytes
        for on, keys in (
            (FAST_LINK, {}),
            (simple_machine(memory_bytes=1 << 30), {}),
            (simple_machine(memory_bytes=1 << 30, cores=2), {}),  # of the host, for its four devices
            (simple_machine(memory_bytes=1 << 30), {"auto__memory_limit_mb": 512.0}),
        )
    ]
    assert sizes == [None, 1 << 30, 1 << 28, 1 << 29]


def test_batches_of_data_sets_stay_as_large():
    _, _, found = found_for(of_data, on=SLOW_LINK, batch=None)
    assert found.total_rows is None
    assert {p.choice.replicas * p.choice.micro_batches for p in found.plans} == {4}


def test_normalised_batches_stay_as_large():
    def build():
        x = tf.placeholder(tf.float32, [None, 8, 8, 4])
        x = tf.layers.batch_normalization(tf.layers.conv2d(x, 8, 3), training=True)
        tf.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.square(x)))

    _, _, found = found_for(build, devices=2)
    assert {p.choice.replicas * p.choice.micro_batches for p in found.plans} == {2}


def _priced(row_s, peak_bytes, **choice):
    """A plan of these costs."""
    return Priced(Choice(4, **choice), {}, SimpleNamespace(fullest=SimpleNamespace(peak_bytes=peak_bytes)), row_s)


def test_reasons_name_plans_that_could_have_been_chosen():
    plans = [
        _priced(1.0, 10),
        _priced(0.995, 10, zero="v1"),  # faster by so little that the simpler one is chosen
        _priced(2.0, 7),
        _priced(2.0, 7, recomputes=True),  # neither is better
        _priced(3.0, 8),
        _priced(5.0, 6),
        _priced(4.0, 5, offload="v0"),  # not beside others without
        _priced(9.0, 30),
    ]
    found = Found("simple", 20, None, 99, tuple(plans))
    assert [found.why_not(plan) for plan in plans] == [
        "chosen",
        "no more than 1 % faster or slower",
        "100 % slower",
        "100 % slower",
        "dominated by 3",
        "400 % slower",
        "offload is for what does not fit otherwise",
        "does not fit: 10 bytes too much",
    ]


def test_stages_that_are_set_and_fit_no_devices():
    with pytest.raises(
        PlanError, match=r"No layout has what is set \(pipeline.num_stages\) on 2 workers with 2 devices"
    ):
        found_for(workers=2, devices=2, auto__auto_parallel=True, pipeline__num_stages=3)


def test_rows_that_nobody_knows_are_asked_for():
    with pytest.raises(PlanError, match="is fed batches of any size.* auto.batch, or --batch"):
        found_for(batch=None)
    assert found_for(batch=None, auto__batch=32)[2].total_rows == 32
    with pytest.raises(
        PlanError, match="the 7 rows of a step as they are on 4 devices.*leave pipeline.num_micro_batch"
    ):
        found_for(batch=7, pipeline__num_micro_batch=2)
    with pytest.raises(PlanError, match=r"divides by the devices \(auto.batch, or --batch\)\.$"):
        found_for(workers=2, devices=1, batch=7)


def test_stages_that_the_program_marks_stay():
    def build():
        x = tf.placeholder(tf.float32, [None, 64])
        with epl.replicate(1, name="one"):
            x = tf.tanh(tf.matmul(x, variable("a", (64, 64))))
        with epl.replicate(1, name="two"):
            mlp(2, x=x)

    _, _, found = found_for(build)
    assert {(p.choice.replicas, p.choice.stages) for p in found.plans} == {(2, 2)}
    assert not any("auto.auto_parallel" in plan.values for plan in found.plans)


def test_what_is_refused_says_why():
    _, _, found = found_for(devices=8, on=SLOW_LINK, batch=64)
    refused = [plan for plan in found.plans if plan.refused is not None]
    assert refused and "this model cannot be cut into pipeline.num_stages=8" in found.why_not(refused[-1])


def test_when_a_plan_is_chosen():
    program, cluster = captured(), planning.cluster(1, 2)
    assert is_wanted(program, Config({"auto.search": True}, {}), cluster)
    assert is_wanted(program, Config({"auto.auto_parallel": True}, {}), cluster)
    assert not is_wanted(program, Config({"auto.auto_parallel": True, "pipeline.num_stages": 2}, {}), cluster)
    assert not is_wanted(program, Config({}, {}), cluster)
    assert not is_wanted(program, Config({"auto.search": True}, {}), planning.cluster(1, 1))
    assert is_wanted(program, Config({"auto.search": True, "auto.memory_limit_mb": 1.0}, {}), planning.cluster(1, 1))


def test_the_machine_of_a_search(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpus, gpus = planning.cluster(1, 2), planning.cluster(1, 2, device_type="GPU")
    assert machine_for(Config({}, {}), cpus) == machine("CPU") and machine_for(Config({}, {}), gpus) == NOMINAL
    named = Config({"cluster.machine": "V100"}, {})
    assert machine_for(named, gpus.with_machine(machine("V100"))) == machine("V100")
    monkeypatch.setattr("epl.search.search.measured", lambda: SLOW_LINK)
    assert machine_for(Config({}, {}), gpus) is SLOW_LINK


class _Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.points, self.open = 0, []

    def handle_starttag(self, tag, attrs):
        self.points += tag == "circle"
        if tag not in ("meta", "line", "path", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_table_page_and_file(tmp_path):
    _, config, found = found_for(on=SLOW_LINK, limit=200000, zero__level="")
    text = shown.table(found, 3)
    assert "Plans for simple, 195.3 KiB a device, a step of 64 rows" in text and "… and " in text
    assert "chosen" in text.splitlines()[3] and len(text.splitlines()) == 7
    page = _Page()
    page.feed(shown.page(found, "Plans <of> train.py"))
    assert page.points == sum(plan.refused is None for plan in found.plans) and not page.open
    told = json.loads(json.dumps(shown.facts(found, config)))
    assert told["plans"][0]["why_not"] == "chosen" and told["rows"] == 64
    path = tmp_path / "run.yaml"
    path.write_text(shown.run_file(found, config, "epl-launch --config run.yaml train.py"))
    again = Config.from_yaml(str(path), {})
    best = found.best.choice
    assert again.zero.level == "" and "zero.level" in again.given
    assert (again.pipeline.num_micro_batch, again.pipeline.strategy) == (best.micro_batches, best.schedule)
    assert again.auto.auto_parallel == (best.stages > 1)


@pytest.mark.parametrize("most", [1e-9, 0.37, 5.0, 3e9])
def test_axes_have_a_few_round_numbers(most):
    ticks = shown._ticks(most)
    assert 3 <= len(ticks) <= 6 and ticks[0] == 0 and ticks[-1] <= most
    assert ("%e" % ticks[1])[0] in "125"


def test_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "2")
    monkeypatch.chdir(tmp_path)
    with capture() as graph:
        mlp()
        Env.get().reset()

        def status(*arguments):
            return preview.show_search(graph, preview.parser().parse_args(["--search", *arguments, "train.py", "--lr"]))

        assert status("--batch", "64", "--machine", "V100", "--pareto", "plans.html") == 0
        told = capsys.readouterr().out
        assert "Plans for V100, 16.0 GiB a device" in told
        assert "epl-launch --num_workers 1 --gpu_per_worker 2 --config run.yaml train.py --lr" in told
        assert (tmp_path / "plans.html").read_text().startswith("<!DOCTYPE html>")
        assert Config.from_yaml("run.yaml", {}).given is not None
        assert status("--batch", "64", "--machine", "V100", "--memory_limit_mb", "0.01") == 2
        assert "PlanError: No plan fits into 10.2 KiB of a device" in capsys.readouterr().err
        assert status("--machine", "V100") == 2 and "fed batches of any size" in capsys.readouterr().err
        assert status("--batch", "8", "--json", "--machine", "V100") == 0
        assert json.loads(capsys.readouterr().out)["machine"] == "V100"
        assert status("--batch", "8", "--run_file", "none/run.yaml", "--machine", "V100") == 2
        assert "--run_file none/run.yaml cannot be written" in capsys.readouterr().err
    with capture() as graph:
        tf.constant(1.0)
        Env.get().reset()
        assert preview.show_search(graph, preview.parser().parse_args(["--search", "train.py"])) == 2
        assert "train.py does not train" in capsys.readouterr().err


class _Job(object):
    """What `Job.decided` gives, in worker 0 or in another one."""

    def __init__(self, told=None):
        self.told = told

    def decided(self, what, decide):
        assert what == "a plan"
        self.told = decide() if self.told is None else self.told
        return self.told


def test_workers_take_the_choice_of_the_first(caplog):
    with capture() as graph:
        mlp()
    first, job = Config({"auto.search": True, "auto.batch": 64}, {}), _Job()
    choose_plan(graph, first, planning.cluster(2, 2), job)
    assert not first.auto.search
    other = Config({"auto.search": True, "auto.batch": 64}, {})
    # By another machine this worker would choose otherwise.
    choose_plan(graph, other, planning.cluster(2, 2, index=1).with_machine(SLOW_LINK), _Job(job.told))
    assert other == first and other.given == first.given
    before = first.to_dict()
    choose_plan(graph, first, planning.cluster(2, 2), None)  # nothing is chosen again
    assert first.to_dict() == before and "auto.batch says" not in caplog.text


def test_rows_that_are_not_told_are_warned_of(caplog):
    with capture() as graph:
        mlp()
    config = Config({"auto.auto_parallel": True}, {})
    choose_plan(graph, config, planning.cluster(1, 2), _Job())
    assert "the plan was chosen for 64 rows a step" in caplog.text
    assert config.auto.auto_parallel == (config.pipeline.num_stages is not None)


def test_why_there_is_no_plan_is_told_to_all_workers():
    with capture() as graph:
        mlp()
    job = _Job()
    for index in range(2):
        config = Config({"auto.search": True, "auto.memory_limit_mb": 1e-3, "auto.batch": 8}, {})
        with pytest.raises(PlanError, match="No plan fits into 1.0 KiB|No plan fits into 1048 bytes"):
            choose_plan(graph, config, planning.cluster(2, 1, index=index), job)
        assert config.auto.search  # nothing has changed


def test_the_plan_that_would_be_chosen_is_shown(monkeypatch, capsys):
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "2")
    with capture() as graph:
        mlp()
        Env.get().reset(Config({"auto.search": True, "cluster.machine": "V100"}))
        assert preview.show(graph, preview.parser().parse_args(["train.py"])) == 0
    told = capsys.readouterr().out
    assert "Plans for V100, 16.0 GiB a device, a step of 64 rows" in told and "Estimated for V100" in told
