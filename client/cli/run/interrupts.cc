#include "client/cli/run/interrupts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace ringd::cli {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  struct sigaction hangup;
  // nohup: it is to go on.
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
    sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { Run(); });
}

Interrupts::~Interrupts() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  const sigset_t set = Signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int Interrupts::first_signal() const {
  MutexLock lock(&mu_);
  return first_signal_;
}

void Interrupts::SetHandler(std::function<void(int)> handler) {
  {
    MutexLock lock(&mu_);
    while (delivering_) idle_.Wait(&mu_);
    handler_ = std::move(handler);
  }
  eventfd_write(wake_.get(), 1);
}

void Interrupts::Deliver() {
  while (true) {
    std::function<void(int)> handler;
    int number = 0;
    {
      MutexLock lock(&mu_);
      if (stopping_ || !handler_ || delivered_ == count_) return;
      number = ++delivered_;
      handler = handler_;
      delivering_ = true;
    }
    handler(number);
    MutexLock lock(&mu_);
    delivering_ = false;
    idle_.SignalAll();
  }
}

void Interrupts::Run() {
  while (true) {
    pollfd entries[2] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      MutexLock lock(&mu_);
      if (count_++ == 0) first_signal_ = static_cast<int>(info.ssi_signo);
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    Deliver();
  }
}

}  // namespace ringd::cli
