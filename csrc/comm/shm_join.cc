// How ranks find each other's segments: through the store they exchange process ids and file descriptors.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "process.h"
#include "sha256.h"
#include "shm_segment.h"

namespace epl {
namespace {

// What a rank publishes. Plain text lines keep it readable in the store and independent of layouts.
struct Card {
  std::string error;  // not empty: this rank cannot use shared memory
  std::string host;
  std::string cpus;
  int pid = 0;
  int fd = -1;
  int arena = -1;  // its file descriptor; -1: none
  uint64_t start_time = 0;
  uint64_t nonce = 0;
};

std::string Body(const Card& card) {
  return Format("%s\n%s\n%s\n%d %d %llu %llu %d", card.error.c_str(), card.host.c_str(), card.cpus.c_str(), card.pid,
                card.fd, static_cast<unsigned long long>(card.start_time), static_cast<unsigned long long>(card.nonce),
                card.arena);
}

std::string Sign(const Options& options, int rank, const std::string& body) {
  const Digest proof = HmacSha256(options.token, Format("shm %s %d\n", options.name.c_str(), rank) + body);
  return std::string(proof.begin(), proof.end()) + body;
}

Status Parse(const Options& options, int rank, const std::string& text, Card* card) {
  const Status bad(EPL_INTERNAL, Format("%s did not prove the job's token", options.Name(rank).c_str()));
  if (text.size() < 32) return bad;
  const std::string body = text.substr(32);
  const Digest proof = HmacSha256(options.token, Format("shm %s %d\n", options.name.c_str(), rank) + body);
  if (!SameDigest(proof, reinterpret_cast<const uint8_t*>(text.data()))) return bad;
  const size_t first = body.find('\n');
  const size_t second = body.find('\n', first + 1);
  const size_t third = second == std::string::npos ? second : body.find('\n', second + 1);
  if (first == std::string::npos || third == std::string::npos) return bad;
  card->error = body.substr(0, first);
  card->host = body.substr(first + 1, second - first - 1);
  card->cpus = body.substr(second + 1, third - second - 1);
  unsigned long long start_time = 0, nonce = 0;
  if (std::sscanf(body.c_str() + third + 1, "%d %d %llu %llu %d", &card->pid, &card->fd, &start_time, &nonce,
                  &card->arena) != 5) {
    return bad;
  }
  card->start_time = start_time;
  card->nonce = nonce;
  return Status();
}

Card MyCard(const Options& options, size_t chunk_bytes, ShmPeer* me) {
  Card card;
  std::random_device random;
  card.nonce = static_cast<uint64_t>(random()) << 32 | random();
  card.host = HostIdentity();
  card.cpus = UsableCpus();
  card.pid = getpid();
  card.start_time = StateOf(card.pid).start_time;
  if (card.start_time == 0) {
    card.error = "/proc is not mounted";
    return card;
  }
  card.error = me->segment.Create(options.size, chunk_bytes, card.nonce).message;
  card.fd = me->segment.fd();
  me->arena = ShmArena::Create();
  if (me->arena != nullptr) card.arena = me->arena->fd();
  return card;
}

// Opens the peers' segments; the text says what was in the way.
std::string OpenAll(const Options& options, const std::vector<Card>& cards, size_t chunk_bytes, ShmGroup* group) {
  for (int rank = 0; rank < options.size; ++rank) {
    ShmPeer* peer = group->ranks[rank].get();
    const Card& card = cards[rank];
    if (!card.error.empty()) return Format("%s: %s", options.Name(rank).c_str(), card.error.c_str());
    if (card.host != cards[options.rank].host)
      return Format("%s and %s run on different hosts", options.Name(options.rank).c_str(), options.Name(rank).c_str());
    peer->pid = card.pid;
    peer->start_time = card.start_time;
    if (rank == options.rank) continue;
    if (card.arena >= 0) peer->arena = ShmArena::Open(card.pid, card.arena);
    const Status status = peer->segment.Open(card.pid, card.fd, options.size, chunk_bytes, card.nonce);
    if (!status.ok()) {
      return Format("%s cannot map the memory of %s: %s", options.Name(options.rank).c_str(),
                    options.Name(rank).c_str(), status.message.c_str());
    }
  }
  return std::string();
}

int CountCpus(const std::vector<Card>& cards) {
  std::string all;
  for (const Card& card : cards) {
    if (card.cpus.size() > all.size()) all.resize(card.cpus.size(), '0');
    for (size_t i = 0; i < card.cpus.size(); ++i) all[i] = card.cpus[i] == '1' ? '1' : all[i];
  }
  int count = 0;
  for (char c : all) count += c == '1';
  return count;
}

}  // namespace

Status ShmJoin(const Options& options, Rendezvous* rendezvous, size_t chunk_bytes, ShmGroup* group) {
  group->ranks.clear();
  for (int rank = 0; rank < options.size; ++rank) group->ranks.push_back(std::make_unique<ShmPeer>());
  const Card mine = MyCard(options, chunk_bytes, group->ranks[options.rank].get());

  std::vector<std::string> texts;
  Status status = rendezvous->AllGather("shm", Sign(options, options.rank, Body(mine)), &texts);
  if (!status.ok()) return status;
  std::vector<Card> cards(options.size);
  for (int rank = 0; rank < options.size && status.ok(); ++rank) {
    status = Parse(options, rank, texts[rank], &cards[rank]);
  }
  // The verdicts are exchanged, so that all take the same way.
  const std::string problem = status.ok() ? OpenAll(options, cards, chunk_bytes, group) : status.message;
  std::vector<std::string> verdicts;
  const bool arenas =
      std::all_of(group->ranks.begin(), group->ranks.end(), [](const auto& peer) { return peer->arena != nullptr; });
  status = rendezvous->AllGather("shm_verdict", (arenas ? "+" : "-") + problem, &verdicts);
  for (auto& peer : group->ranks) peer->segment.CloseFile();
  if (!status.ok()) return status;
  for (const std::string& verdict : verdicts) {
    if (verdict.size() > 1) return Status(EPL_INTERNAL, "shared memory cannot be used: " + verdict.substr(1));
  }
  group->arenas = std::all_of(verdicts.begin(), verdicts.end(), [](const auto& verdict) { return verdict[0] == '+'; });
  const int cpus = CountCpus(cards);
  group->enough_cpus = cpus >= options.size;
  group->spare_cpus = cpus >= 2 * options.size;
  return Status();
}

}  // namespace epl
