"""The pages say what the code does: messages that the troubleshooting page quotes exist, links lead somewhere."""

import ast
import os
import re

import pytest
import yaml

from epl.cluster.machine import from_dict
from epl.config.keys import CATEGORIES, keys
from epl.launch import options

pytestmark = pytest.mark.once

# Of names that begin like a category: files, and the attributes of programs.
OTHERS = (".json", ".html", ".py", ".pbtxt", ".shape", ".get_slot")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADING = re.compile(r"^#### `(.+)`$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CPP_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8") as page:
        return page.read()


def files(folder, *endings):
    for base, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.relpath(os.path.join(base, name), ROOT)


def python_strings(source):
    """All string constants; strings that stand side by side are one."""
    return [node.s for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Str)]


def source_texts():
    """Every text in the sources that a message may be made of. C++ and shell: a file's strings in a row."""
    texts = []
    for name in files("epl", ".py"):
        texts.extend(python_strings(read(name)))
    for folder in ("csrc", "scripts"):
        for name in files(folder, ".cc", ".h", ".sh"):
            source = read(name)
            texts.append(re.sub(r'"\s*"', "", source))
            texts.append(" ".join(CPP_STRING.findall(source)))
    return texts


def occurs(message, texts):
    """Whether the fixed parts of `message`, which "…" separates, follow each other in one of the texts."""
    parts = [part.strip() for part in message.split("…")]
    return any(_follow_each_other(parts, text) for text in texts)


def _follow_each_other(parts, text):
    end = 0
    for part in parts:
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def test_troubleshooting_quotes_messages_that_exist():
    messages = HEADING.findall(read("docs", "troubleshooting.md"))
    assert len(messages) > 20
    texts = source_texts()
    assert [message for message in messages if not occurs(message, texts)] == []


def test_a_message_that_does_not_exist_is_noticed():
    texts = python_strings('raise E("port %d of " "host %s is taken" % (p, h))')
    assert occurs("port … of host … is taken", texts)
    assert not occurs("host … of port … is taken", texts)


@pytest.mark.parametrize("page", sorted(list(files("docs", ".md")) + ["README.md", "CONTRIBUTING.md"]))
def test_links_lead_somewhere(page):
    targets = [target for target in LINK.findall(read(page)) if "://" not in target]
    lost = [name for name in targets if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), name))]
    assert lost == []


def faulty_tables(text):
    """(line number, what is wrong) of the tables of a page, outside of blocks of code."""
    inside, rows, before = False, [], ""
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.startswith("```"):
            inside = not inside
        is_row = not inside and line.startswith("|")
        if is_row and not rows and before.strip() and not before.startswith("#"):
            yield number, "no empty line before the table"
        if is_row:
            rows.append((number, len(re.findall(r"(?<!\\)\|", line)), line))
        elif rows:
            if len(rows) < 2 or not re.fullmatch(r"(\|[ :-]*-[ :-]*)+\|", rows[1][2].strip()):
                yield rows[0][0], "no line of dashes below the heads"
            for at, pipes, row in rows:
                if pipes != rows[0][1] or not row.rstrip().endswith("|"):
                    yield at, "%d cells, not %d as the heads" % (pipes - 1, rows[0][1] - 1)
            if line.strip() and not inside:
                yield number, "the table is not followed by an empty line"
            rows = []
        before = line


PAGES = sorted(list(files("docs", ".md")) + list(files("examples", ".md")) + ["README.md", "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_whole(page):
    assert list(faulty_tables(read(page))) == []


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("| a | b |\n|---|---|\n| 1 | `x \\| y` |\n\nmore", []),
        ("| a | b |\n|---|---|\n| 1 | `x | y` |\n", [(3, "3 cells, not 2 as the heads")]),
        (
            "| a | b |\n|---|---|\n| 1 |\n| 2 | 3\n",
            [(3, "1 cells, not 2 as the heads"), (4, "1 cells, not 2 as the heads")],
        ),
        ("| a | b |\n| 1 | 2 |\n", [(1, "no line of dashes below the heads")]),
        (
            "text\n| a |\n|---|\nmore",
            [(2, "no empty line before the table"), (4, "the table is not followed by an empty line")],
        ),
        ("```\n| a | b |\n```\n", []),
    ],
)
def test_a_broken_table_is_noticed(text, wrong):
    assert list(faulty_tables(text)) == wrong


# Options of DistributedStrategy, BuildStrategy and ExecutionStrategy, and the variables that Fleet's guide sets.
OF_FLEET = """
    a_sync adaptive_localsgd adaptive_localsgd_configs amp amp_configs auto avg begin_step cache_runtime_context
    checkpoint_shape checkpoints conv_workspace_size_limit cudnn_batchnorm_spatial_persistent cudnn_exhaustive_search
    custom_black_list custom_white_list decr_every_n_nan_or_inf decr_ratio dgc dgc_configs dp_degree enable_auto_fusion
    enable_backward_optimizer_op_deps enable_inplace enable_offload enable_sequential_execution epsilon
    exclude_from_weight_decay fp16_allreduce fuse_all_optimizer_ops fuse_all_reduce_ops fuse_bn_act_ops
    fuse_broadcast_ops fuse_elewise_add_act_ops fuse_grad_size_in_MB fuse_grad_size_in_TFLOPS fuse_relu_depthwise_conv
    gradient_merge gradient_merge_acc_step gradient_merge_configs hierarchical_allreduce_inter_nranks incr_every_n_steps
    incr_ratio init_k_steps init_loss_scaling k_steps lamb lamb_configs lamb_weight_decay lars lars_coeff lars_configs
    lars_weight_decay localsgd localsgd_configs micro_batch_size mp_degree nccl_comm_num num_iteration_per_drop_scope
    num_iteration_per_run num_threads optimize_offload pipeline pipeline_configs pp_allreduce_in_optimize pp_degree
    rampup_begin_step rampup_step recompute recompute_configs segment_anchors segment_broadcast_MB sharding
    sharding_configs sharding_degree sharding_segment_strategy sparsity sync_batch_norm sync_nccl_allreduce thread_num
    use_dynamic_loss_scaling use_hierarchical_allreduce use_thread_barrier
    FLAGS_fraction_of_gpu_memory_to_use FLAGS_fuse_parameter_groups_size FLAGS_fuse_parameter_memory_size
    FLAGS_selected_gpus NCCL_DEBUG NCCL_IB_CUDA_SUPPORT NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_SOCKET_IFNAME
    load_from_prototxt save_to_prototxt
"""


def test_every_option_of_fleet_has_its_line():
    page = read("docs", "migrating.md")
    section = page[page.index("## From Paddle Fleet") : page.index("## From parameter servers")]
    firsts = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))
    named = set(re.findall(r"\w+", firsts))
    assert [option for option in OF_FLEET.split() if option not in named] == []


def test_keys_on_pages_exist():
    known = set(keys())
    for page in files("docs", ".md"):
        for name in re.findall(r"`\"?([a-z_]+\.[a-z0-9_]+)(?:`|=|\")", read(page)):
            assert name in known or name.split(".")[0] not in CATEGORIES or name.endswith(OTHERS), (page, name)


def launches(text):
    """The launcher's own options in each `epl-launch …` of a page, a list of names for each."""
    for command in re.findall(r"(?:^|`|&& )epl-launch ([^`#\\\n]*(?:\\\n[^`#\\\n]*)*)", text, re.MULTILINE):
        own = re.split(r"\s[\w./]+\.(?:sh|py)\b", " " + command)[0]
        yield re.findall(r"(?<=\s)--[\w-]+", own)


@pytest.mark.parametrize("page", PAGES)
def test_options_of_epl_launch_on_pages_exist(page):
    known = set(re.findall(r"--\w+", options._parser().format_help()))
    assert [name for names in launches(read(page)) for name in names if name not in known] == []


def test_an_option_that_epl_launch_does_not_have_is_noticed():
    text = "Call `epl-launch --num_worker 2 run.sh --epochs 3`.\n\nepl-launch --gpus 0,1 \\\n  --what run.sh"
    assert list(launches(text)) == [["--num_worker"], ["--gpus", "--what"]]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_yaml_can_be_read(page):
    manifests = [read(name).split("\n", 1)[1] for name in files("examples/kubernetes", ".yaml")]
    for block in re.findall(r"```yaml\n(.*?)```", read(page), re.DOTALL):
        if "apiVersion" in block:
            assert block in manifests
        else:
            values = yaml.safe_load(block)
            assert from_dict(values).name == values["name"]


def test_getting_started_shows_the_quick_start():
    def statements(source):
        module = ast.parse(source)
        return [ast.dump(node) for node in module.body if not isinstance(getattr(node, "value", None), ast.Str)]

    shown = re.search(r"```python\n(# local_model\.py\n.*?)```", read("docs", "getting_started.md"), re.DOTALL).group(1)
    assert statements(shown) == statements(read("examples", "quickstart", "local_model.py"))
