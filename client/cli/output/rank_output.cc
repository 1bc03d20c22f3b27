#include "client/cli/output/rank_output.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace ringd::cli {

using ringd::cluster::v1::LogChunk;
using ringd::cluster::v1::LogPiece;

bool WriteFully(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

RankOutput::RankOutput(int out_fd, int err_fd, bool prefix, Taker take)
    : out_fd_(out_fd), err_fd_(err_fd), prefix_(prefix), take_(std::move(take)) {}

bool RankOutput::WriteTo(bool standard_error, const std::string& text) {
  return text.empty() || WriteFully(standard_error ? err_fd_ : out_fd_, text);
}

bool RankOutput::Write(const LogChunk& chunk) {
  for (const LogPiece& piece : chunk.pieces()) {
    uint64_t& to_skip = to_skip_[chunk.rank()];
    const uint64_t skipped = std::min<uint64_t>(to_skip, piece.data().size());
    to_skip -= skipped;
    const std::string data = piece.data().substr(skipped);
    received_[chunk.rank()] += data.size();
    if (take_ && !piece.standard_error()) {
      if (!data.empty() && !take_(chunk.rank(), data)) return false;
      continue;
    }
    if (!prefix_) {
      if (!WriteTo(piece.standard_error(), data)) return false;
      continue;
    }
    const std::pair<int, bool> key(chunk.rank(), piece.standard_error());
    LinePrefixer& prefixer = prefixers_.try_emplace(key, chunk.rank()).first->second;
    if (!WriteTo(piece.standard_error(), prefixer.Add(data))) return false;
  }
  return true;
}

bool RankOutput::Finish() {
  bool ok = true;
  for (auto& [key, prefixer] : prefixers_) ok = WriteTo(key.second, prefixer.Finish()) && ok;
  return ok;
}

}  // namespace ringd::cli
