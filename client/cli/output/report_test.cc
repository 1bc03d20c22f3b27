#include "client/cli/output/report.h"

#include "common/process/exit_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

using namespace ringd::cluster::v1;  // NOLINT: one proto package's names, in a test.
using ::testing::HasSubstr;
using ::testing::StartsWith;

Job Failed(int exit_code, int signal, const std::string& tail, const std::string& reason = "") {
  Job job;
  job.set_id("j-1");
  job.set_state(JOB_STATE_FAILED);
  job.mutable_first_failure()->set_rank(1);
  job.mutable_first_failure()->set_node("a");
  job.mutable_first_failure()->set_exit_code(exit_code);
  job.mutable_first_failure()->set_signal(signal);
  job.mutable_first_failure()->set_stderr_tail(tail);
  job.mutable_first_failure()->set_reason(RankEndSentence({.rank = 1,
                                                           .node = "a",
                                                           .exit_code = exit_code,
                                                           .signal = signal,
                                                           .reason = reason,
                                                           .stderr_tail = tail}));
  return job;
}

TEST(FailureReport, FirstLine_HasRankNodeCodeAndLastLine) {
  EXPECT_EQ(FailureReport(Failed(3, 0, "ValueError: bad\n")),
            "ringctl: rank 1 (node a) exited with code 3: ValueError: bad\n");
  EXPECT_EQ(FailureReport(Failed(0, 11, "")), "ringctl: rank 1 (node a) was killed by SIGSEGV\n");
  EXPECT_EQ(FailureReport(Failed(0, 9, "", "OOM-killed, peak 1.2 GB of 1.0 GB")),
            "ringctl: rank 1 (node a) was killed by SIGKILL (OOM-killed, peak 1.2 GB of 1.0 GB)\n");
}

TEST(FailureReport, TailAndFollowers_ComeAfter) {
  Job job = Failed(1, 0, "Traceback\n  line\n 10%\r 20%\nValueError: bad\n");
  job.add_rank()->set_state("followed");
  job.add_rank()->set_rank(1);
  job.mutable_rank(1)->set_state("failed");
  job.add_rank()->set_rank(2);
  job.mutable_rank(2)->set_state("followed");
  EXPECT_EQ(FailureReport(job),
            "ringctl: rank 1 (node a) exited with code 1: ValueError: bad\n"
            "  last lines of rank 1's standard error:\n"
            "    Traceback\n      line\n     20%\n    ValueError: bad\n"
            "  followed: ranks 0, 2 (ended after it)\n");
}

TEST(FailureReport, OtherEnds_SayWhy) {
  Job job;
  job.set_id("j-2");
  job.set_reason("ended by root");
  job.set_state(JOB_STATE_CANCELLED);
  EXPECT_EQ(FailureReport(job), "ringctl: job j-2 was cancelled: ended by root\n");
  job.set_state(JOB_STATE_FAILED);
  EXPECT_EQ(FailureReport(job), "ringctl: job j-2 failed: ended by root\n");
  job.set_refused(true);
  job.set_reason("node a: pyhton: no such program");
  EXPECT_EQ(FailureReport(job), "ringctl: node a: pyhton: no such program\n");
  job.set_state(JOB_STATE_SUCCEEDED);
  EXPECT_EQ(FailureReport(job), "");
}

TEST(ExitCodeOf, Jobs_FollowTheRule) {
  Job job;
  job.set_state(JOB_STATE_SUCCEEDED);
  EXPECT_EQ(ExitCodeOf(job), 0);
  EXPECT_EQ(ExitCodeOf(Failed(3, 0, "")), 3);
  EXPECT_EQ(ExitCodeOf(Failed(0, 9, "")), 137);
  Job deadline;
  deadline.set_state(JOB_STATE_FAILED);
  deadline.set_exit_code(124);
  EXPECT_EQ(ExitCodeOf(deadline), 124);
  Job refused = Failed(0, 0, "");
  refused.set_refused(true);
  EXPECT_EQ(ExitCodeOf(refused), 2);
  for (const JobState state : {JOB_STATE_CANCELLED, JOB_STATE_PREEMPTED}) {
    Job ended;
    ended.set_state(state);
    EXPECT_EQ(ExitCodeOf(ended), 143);
  }
  Job unknown;
  unknown.set_state(JOB_STATE_FAILED);
  EXPECT_EQ(ExitCodeOf(unknown), 1);
}

TEST(ExitCodeOf, Statuses_TellTheUsersMistakes) {
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
}

TEST(ParseSignal, NamesAndNumbers) {
  for (const char* text : {"15", "TERM", "SIGTERM", "sigterm", "term"}) {
    EXPECT_EQ(ParseSignal(text).value(), 15) << text;
  }
  for (const char* text : {"", "0", "-1", "65", "SIGNOPE", "TERM "}) {
    EXPECT_EQ(ParseSignal(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(StateSentence, ReasonThatBeginsWithTheState_IsNotDoubled) {
  Job job;
  job.set_state(JOB_STATE_QUEUED);
  EXPECT_EQ(StateSentence(job), "queued");
  job.set_reason("queued: needs 5 slots, cluster has 4");
  EXPECT_EQ(StateSentence(job), "queued: needs 5 slots, cluster has 4");
  job.set_reason("needs more");
  EXPECT_EQ(StateSentence(job), "queued: needs more");
}

TEST(Json, List_HasTheContractsFields) {
  Job job;
  job.set_id("j-1");
  job.set_name("n\xff");
  job.set_state(JOB_STATE_RUNNING);
  job.set_ranks(4);
  const auto rows = nlohmann::json::parse(JsonText(ListJson({job})));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["id"], "j-1");
  EXPECT_EQ(rows[0]["state"], "running");
  EXPECT_EQ(rows[0]["ranks"], 4);
  EXPECT_EQ(rows[0]["reason"], "");
  EXPECT_EQ(JsonText(ListJson({})), "[]\n");
}

TEST(Json, Describe_HasTheContractsFields) {
  Job job = Failed(3, 0, "");
  job.set_generation(1);
  job.mutable_created()->set_seconds(1767225600);  // 2026-01-01.
  Rank* rank = job.add_rank();
  rank->set_node("a");
  rank->set_pid(7);
  rank->set_state("failed");
  rank->set_exit_code(3);
  const auto json = nlohmann::json::parse(JsonText(DescribeJson(job)));
  EXPECT_EQ(json["generation"], 1);
  EXPECT_EQ(json["created"], "2026-01-01T00:00:00.000Z");
  EXPECT_TRUE(json["started"].is_null());
  EXPECT_EQ(json["restarts"], 0);
  ASSERT_EQ(json["ranks"].size(), 1u);
  for (const char* field : {"rank", "local_rank", "node", "pid", "state", "exit_code", "signal"}) {
    EXPECT_TRUE(json["ranks"][0].contains(field)) << field;
  }
  EXPECT_EQ(json["ranks"][0]["exit_code"], 3);
}

TEST(Json, Nodes_HasTheContractsFields) {
  NodeState node;
  node.set_name("a");
  node.set_state("drained");
  node.set_slots(4);
  const auto rows = nlohmann::json::parse(JsonText(NodesJson({node})));
  for (const char* field : {"name", "state", "slots", "used", "reason", "until"}) {
    EXPECT_TRUE(rows[0].contains(field)) << field;
  }
  EXPECT_TRUE(rows[0]["until"].is_null());
}

TEST(Table, ColumnsLineUp_AlsoBehindUmlauts) {
  EXPECT_EQ(Table({"A", "B"}, {{"xyz", "1"}, {"\xc3\xa4", "2"}}),
            "A    B\nxyz  1\n\xc3\xa4    2\n");
}

TEST(DescribeText, ShowsRanksAndExitCode) {
  Job job = Failed(3, 0, "");
  job.add_rank()->set_state("failed");
  job.mutable_rank(0)->set_exit_code(3);
  EXPECT_THAT(DescribeText(job), StartsWith("job         j-1\n"));
  EXPECT_THAT(DescribeText(job), HasSubstr("exit code   3\n"));
  EXPECT_THAT(DescribeText(job), HasSubstr("RANK"));
}

}  // namespace
}  // namespace ringd::cli
