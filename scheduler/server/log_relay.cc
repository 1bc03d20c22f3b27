#include "scheduler/server/log_relay.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::JOB_STATE_FINISHING;
using ringd::cluster::v1::JOB_STATE_RUNNING;
using ringd::cluster::v1::LogChunk;
using ringd::cluster::v1::LogData;
using ringd::cluster::v1::LogsRequest;
using ringd::cluster::v1::NodeOrder;

}  // namespace

LogRelay::ReaderId LogRelay::Open(const std::string& job, const LogsRequest& request, LogSink* sink,
                                  absl::Duration now) {
  const v1::JobRecord* record = machine_->FindRecord(job);
  if (record == nullptr) {
    sink->End(absl::NotFoundError(absl::StrCat("no job ", job)));
    return 0;
  }
  if (request.rank() < -1 || request.rank() >= record->job().ranks()) {
    sink->End(absl::InvalidArgumentError(absl::StrCat(
        job, " has no rank ", request.rank(), ": its ranks are 0 to ", record->job().ranks() - 1)));
    return 0;
  }
  if (request.tail_lines() < 0) {
    sink->End(absl::InvalidArgumentError("--tail is negative"));
    return 0;
  }
  if (readers_.size() >= kMaxLogReaders) {
    sink->End(absl::ResourceExhaustedError(absl::StrCat(
        readers_.size(), " log readers are open already; close some or try again later")));
    return 0;
  }
  const ReaderId id = next_reader_++;
  Reader& reader = readers_[id];
  reader.job = job;
  reader.request = request;
  reader.sink = sink;
  Pump(id, now);
  return id;
}

void LogRelay::Close(ReaderId id) {
  const auto it = readers_.find(id);
  if (it == readers_.end()) return;
  for (const Cursor& cursor : it->second.cursors) requests_.erase(cursor.request);
  readers_.erase(it);
}

bool LogRelay::Build(Reader* reader) {
  if (reader->built) return true;
  const v1::JobRecord* record = machine_->FindRecord(reader->job);
  if (record == nullptr) {
    reader->sink->End(absl::NotFoundError(absl::StrCat(reader->job, " is no longer known")));
    return false;
  }
  const auto& job = record->job();
  const bool placed =
      job.state() == JOB_STATE_RUNNING || job.state() == JOB_STATE_FINISHING || job.has_finished();
  if (!placed && reader->request.follow()) return true;  // Later.
  reader->built = true;
  if (!placed) return true;
  for (int rank = 0; rank < job.rank_size(); ++rank) {
    if (reader->request.rank() >= 0 && rank != reader->request.rank()) continue;
    reader->cursors.emplace_back().rank = rank;
  }
  reader->open = reader->cursors.size();
  return true;
}

void LogRelay::Pump(ReaderId id, absl::Duration now) {
  const auto it = readers_.find(id);
  if (it == readers_.end()) return;
  Reader& reader = it->second;
  if (!Build(&reader) || !reader.built) return;
  if (!reader.chunks.empty() && reader.sink->idle()) {
    LogChunk chunk = std::move(reader.chunks.front());
    reader.chunks.pop_front();
    reader.sink->Send(std::move(chunk));
  }
  for (size_t i = 0; i < reader.cursors.size(); ++i) {
    if (reader.outstanding + reader.chunks.size() >= kLogWindow || reader.open == 0) break;
    const size_t index = reader.next;
    reader.next = (reader.next + 1) % reader.cursors.size();
    Cursor& cursor = reader.cursors[index];
    if (!cursor.done && cursor.request == 0 && cursor.not_before <= now)
      Ask(id, &reader, index, now);
  }
  if (reader.open == 0 && reader.chunks.empty() && reader.sink->idle())
    reader.sink->End(reader.status);
}

void LogRelay::Ask(ReaderId id, Reader* reader, size_t index, absl::Duration now) {
  Cursor& cursor = reader->cursors[index];
  const v1::JobRecord* record = machine_->FindRecord(reader->job);
  if (record == nullptr || cursor.rank >= record->job().rank_size()) {
    return Finish(reader, &cursor,
                  absl::NotFoundError(absl::StrCat(reader->job, " is no longer known")));
  }
  const auto& rank = record->job().rank(cursor.rank);
  if (rank.pid() == 0 && rank.log_path().empty()) {  // Nothing was started.
    if (record->job().has_finished() || !reader->request.follow())
      Finish(reader, &cursor, absl::OkStatus());
    return;
  }
  bool gone = false;
  const ConnectionId connection = machine_->NodeConnection(rank.node(), &gone);
  if (connection == 0) {
    if (reader->request.follow() && !gone) return;
    return Finish(reader, &cursor,
                  absl::UnavailableError(
                      absl::StrCat("node ", rank.node(), ", which holds the output of rank ",
                                   cursor.rank, ", is ", gone ? "lost" : "away")));
  }
  NodeOrder order;
  auto& read = *order.mutable_read_log();
  read.set_request(next_request_++);
  read.set_job(reader->job);
  read.set_rank(cursor.rank);
  read.set_offset(cursor.offset);
  if (!cursor.begun) read.set_tail_lines(reader->request.tail_lines());
  read.set_max_bytes(kLogBytes);
  read.set_wait(reader->request.follow());
  cursor.begun = true;
  cursor.request = read.request();
  cursor.asked = now;
  ++reader->outstanding;
  requests_[cursor.request] = {id, index, connection};
  send_(connection, std::move(order));
}

void LogRelay::Finish(Reader* reader, Cursor* cursor, absl::Status status) {
  cursor->done = true;
  --reader->open;
  if (!status.ok() && reader->status.ok()) reader->status = std::move(status);
}

void LogRelay::OnData(ConnectionId connection, LogData data, absl::Duration now) {
  const auto it = requests_.find(data.request());
  if (it == requests_.end() || it->second.connection != connection) return;  // Its reader has gone.
  const Request request = it->second;
  requests_.erase(it);
  Reader& reader = readers_.at(request.reader);
  Cursor& cursor = reader.cursors[request.cursor];
  cursor.request = 0;
  --reader.outstanding;
  const bool empty = data.pieces().empty();
  if (!data.error().empty()) {
    Finish(&reader, &cursor,
           absl::NotFoundError(absl::StrCat("rank ", cursor.rank, ": ", data.error())));
  } else if (data.finished() || (empty && !reader.request.follow())) {
    Finish(&reader, &cursor, absl::OkStatus());
  } else if (empty && now - cursor.asked < kLogPause) {
    cursor.not_before = now + kLogPause;
  }
  cursor.offset = data.next_offset();
  if (!empty) {
    LogChunk& chunk = reader.chunks.emplace_back();
    chunk.set_rank(cursor.rank);
    chunk.mutable_pieces()->Swap(data.mutable_pieces());
  }
  Pump(request.reader, now);
}

void LogRelay::OnConnectionGone(ConnectionId connection, absl::Duration now) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (it->second.connection != connection) {
      ++it;
      continue;
    }
    Reader& reader = readers_.at(it->second.reader);
    reader.cursors[it->second.cursor].request = 0;
    --reader.outstanding;
    it = requests_.erase(it);
  }
  OnChange("", now);
}

void LogRelay::OnChange(const std::string& job, absl::Duration now) {
  std::vector<ReaderId> concerned;
  for (const auto& [id, reader] : readers_) {
    if (job.empty() || reader.job == job) concerned.push_back(id);
  }
  for (ReaderId id : concerned) Pump(id, now);
}

}  // namespace ringd::scheduler
