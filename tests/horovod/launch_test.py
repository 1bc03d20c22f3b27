"""What a horovodrun comes to: pure functions of its arguments."""

import sys

import pytest

from tests.support import horovod


@pytest.fixture(scope="module", autouse=True)
def launch():
    sys.path.insert(0, str(horovod.folder()))
    try:
        import horovod.runner.launch as launch

        yield launch
    finally:
        sys.path.remove(str(horovod.folder()))


@pytest.fixture
def plan(launch):
    def make(*arguments, surroundings=None, here="node-7"):
        given = launch.parse([*map(str, arguments), "python", "x.py", "-np", "9"])
        return launch.plan(given, surroundings or {}, here)

    return make


COMMAND = ["--env-all", "--", "python", "x.py", "-np", "9"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-np", 2], ["-n", "2"]),
        (["--num-proc", 2], ["-n", "2"]),
        (["-np", 2, "--verbose"], ["-n", "2", "-v"]),
        (["-np", 4, "-H", "a:2,b:2"], ["-n", "4", "--hosts", "a:2,b:2"]),
        (["-np", 3, "--hosts", "a:2,b:4"], ["-n", "3", "--hosts", "a:2,b:1"]),
        (["-np", 2, "-H", "a:4,b:4"], ["-n", "2", "--hosts", "a:2,b:0"]),
        (["-np", 3, "-H", "a,b"], ["-n", "3", "--hosts", "a,b"]),
        (["-np", 3, "-H", "a,b", "--slots-per-host", 2], ["-n", "3", "--hosts", "a:2,b:1"]),
        (["-np", 2, "-H", "localhost:2"], ["-n", "2", "--hosts", "localhost:2"]),
        (
            ["-np", 2, "--min-np", 1, "--max-np", 4, "--reset-limit", 5],
            ["-n", "2", "--min", "1", "--max", "4", "--max-restarts", "5"],
        ),
        (
            ["-np", 2, "--min-num-proc", 1, "--max-num-proc", 4],
            ["-n", "2", "--min", "1", "--max", "4"],
        ),
        (
            ["-np", 2, "--stall-check-shutdown-time-seconds", 30],
            ["-n", "2", "--stall-timeout", "30s"],
        ),
        (["-np", 2, "--stall-check-shutdown-time-seconds", 0], ["-n", "2"]),
    ],
)
def test_flags_become_ringctls(plan, arguments, expected):
    assert plan(*arguments).arguments == ["run", *expected, *COMMAND]


def test_words_that_ringctl_may_refuse_are_shown(plan):
    made = plan("-np", 2, "--min-np", 1, "--stall-check-shutdown-time-seconds", 5)
    assert made.notes == ["for ringctl: --min 1 --stall-timeout 5s"]


def test_on_a_cluster_localhost_is_this_machine(plan):
    made = plan("-np", 3, "-H", "localhost:2,b:1", surroundings={"RINGD_SCHEDULER": "s:7470"})
    assert made.arguments[3:5] == ["--hosts", "node-7:2,b:1"]


def test_host_file(plan, tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2\n\nb slots=4  # big\n")
    assert plan("-np", 3, "-hostfile", file).arguments[3:5] == ["--hosts", "a:2,b:1"]


@pytest.mark.parametrize("text", ["", "a slots=x", "a b c", "a cores=2", "a b"])
def test_bad_host_file_is_refused_by_its_line(plan, tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text(f"{text}\n")
    with pytest.raises(ValueError, match=str(file)):
        plan("-np", 1, "--hostfile", file)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--fusion-threshold-mb", 64], {"HOROVOD_FUSION_THRESHOLD": str(64 << 20)}),
        (["--cycle-time-ms", 3.5], {"HOROVOD_CYCLE_TIME": "3.5"}),
        (["--cache-capacity", 0], {"HOROVOD_CACHE_CAPACITY": "0"}),
        (["--hierarchical-allreduce"], {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        (["--no-torus-allreduce"], {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        (["--autotune"], {"HOROVOD_AUTOTUNE": "1"}),
        (["--tcp"], {"NCCL_IB_DISABLE": "1"}),
        (["--network-interfaces", "eth0,eth1"], {"NCCL_SOCKET_IFNAME": "eth0,eth1"}),
        (["--network-interface", "eth0"], {"NCCL_SOCKET_IFNAME": "eth0"}),
        (["--timeline-filename", "t.json"], {"HOROVOD_TIMELINE": "t.json"}),
        (["--log-level", "debug"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        (["--thread-affinity", "0,1"], {"HOROVOD_THREAD_AFFINITY": "0,1"}),
        (["--gloo", "--verbose"], {}),
    ],
)
def test_variables_for_scripts_that_read_them(plan, arguments, expected):
    assert plan("-np", 2, *arguments).environment == expected


WITHOUT_EFFECT = [
    ["-p", 22],
    ["--ssh-port", 22],
    ["-i", "key"],
    ["--disable-cache"],
    ["--start-timeout", 60],
    ["--network-interface", "eth0"],
    ["--network-interfaces", "eth0"],
    ["--mpi"],
    ["--mpi-args=-x A"],
    ["--binding-args=-bind"],
    ["--elastic-timeout", 5],
    ["--blacklist-cooldown-range", 10, 20],
    ["--hierarchical-allgather"],
    ["--no-hierarchical-allgather"],
    ["--no-hierarchical-allreduce"],
    ["--torus-allreduce"],
    ["--no-autotune"],
    ["--autotune-log-file", "x"],
    ["--autotune-warmup-samples", 1],
    ["--autotune-steps-per-sample", 1],
    ["--autotune-bayes-opt-max-samples", 1],
    ["--autotune-gaussian-process-noise", 0.5],
    ["--timeline-mark-cycles"],
    ["--no-timeline-mark-cycles"],
    ["--stall-check"],
    ["--no-stall-check"],
    ["--stall-check-warning-time-seconds", 5],
    ["--mpi-threads-disable"],
    ["--no-mpi-threads-disable"],
    ["--num-nccl-streams", 2],
    ["--gloo-timeout-seconds", 5],
    ["--log-with-timestamp"],
    ["--log-without-timestamp"],
    ["--log-hide-timestamp"],
    ["--no-log-hide-timestamp"],
    ["-prefix-timestamp"],
    ["--prefix-output-with-timestamp"],
]


@pytest.mark.parametrize("arguments", WITHOUT_EFFECT, ids=lambda words: words[0])
def test_flags_without_effect_say_so_in_one_line(plan, arguments):
    made = plan("-np", 2, *arguments)
    assert made.arguments == ["run", "-n", "2", *COMMAND]
    (note,) = made.notes
    assert note.startswith("no effect: -") and note.endswith(")")


def test_flags_of_one_reason_share_a_line(plan):
    made = plan("-np", 2, "--mpi", "--ssh-port", 1, "-i", "x", "--mpi-args=x")
    assert [note.count("--") for note in made.notes] == [2, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cycle-time-ms", -1],
        ["--stall-check-warning-time-seconds", -1],
        ["--autotune-gaussian-process-noise", 1.5],
        ["--host-discovery-script", "x.sh"],
        ["--hosts", "a:1", "--hostfile", "x"],
        ["--jsrun"],
        ["--hosts", "a:1,:2"],
    ],
)
def test_what_makes_no_sense_is_refused(plan, arguments):
    with pytest.raises(ValueError, match="--"):
        plan("-np", 2, *arguments)


CONFIG = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 7
autotune:
  enabled: true
stall_check:
  enabled: false
  shutdown_time_seconds: 9
"""


def test_configuration_file_and_flags_that_win(plan, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    for order in (1, -1):
        words = [["--config-file", file], ["--cycle-time-ms", 2]][::order]
        made = plan("-np", 2, *words[0], *words[1])
        assert made.environment == {
            "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
            "HOROVOD_CYCLE_TIME": "2.0",
            "HOROVOD_AUTOTUNE": "1",
        }
        assert made.arguments[3:5] == ["--stall-timeout", "9s"]


@pytest.mark.parametrize(
    "text", ["params: 3", "params: {no_such: 1}", "3", "{", "params: {cache_capacity: many}"]
)
def test_bad_configuration_file_is_named(plan, tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=str(file)):
        plan("-np", 2, "--config-file", file)


def test_every_flag_is_mapped_or_says_why(launch):
    mapped = {
        *("num_proc", "hosts", "hostfile", "output_filename", "verbose", "config_file"),
        *("version", "check_build", "min_num_proc", "max_num_proc", "reset_limit"),
        *(
            "slots_per_host",
            "gloo",
            "jsrun",
            "tcp",
            "timeline_filename",
            "stall_check_shutdown_time_seconds",
        ),
    }
    assert {flag.key for flag in launch.FLAGS if flag.why is None} == mapped
