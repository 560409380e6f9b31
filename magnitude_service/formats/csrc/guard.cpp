#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace magnitude::formats::guard {
namespace {

// One watched mapping. `version` is odd while begin and end change: the handler skips the slot then, which is right,
// because a mapping that someone reads is not being registered or given up.
struct Watched {
    std::atomic<std::uint32_t> version{0};
    std::atomic<std::uintptr_t> begin{0};
    std::atomic<std::uintptr_t> end{0};
    std::atomic<bool> is_damaged{false};
};

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler must not wait for a lock");

Watched table[MAPPINGS_MAX];
std::atomic<std::size_t> table_end{0};  // slots beyond were never used
std::atomic<std::uintptr_t> page_bytes{4096};
std::mutex registration;          // guards the table's owners and `previous`; never taken by the handler
struct sigaction previous = {};   // written before the handler can run, and whenever it is installed again
struct sigaction original = {};   // what was there before the handler was first installed
bool is_installed = false;

// Finds the mapping that holds `address` and puts zero pages from there to its end.
bool repair(std::uintptr_t address) {
    const std::size_t end = table_end.load(std::memory_order_acquire);
    for (std::size_t slot = 0; slot < end; ++slot) {
        Watched& watched = table[slot];
        const std::uint32_t version = watched.version.load(std::memory_order_acquire);
        const std::uintptr_t begin = watched.begin.load(std::memory_order_acquire);
        const std::uintptr_t limit = watched.end.load(std::memory_order_acquire);
        if (version % 2 != 0 || watched.version.load(std::memory_order_acquire) != version) continue;
        if (address < begin || address >= limit) continue;
        // The mark comes first: nobody may read a zero page and find the mapping unmarked.
        watched.is_damaged.store(true);
        const std::uintptr_t page = address & ~(page_bytes.load(std::memory_order_relaxed) - 1);
        void* const zeros = mmap(reinterpret_cast<void*>(page), limit - page, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        return zeros != MAP_FAILED;
    }
    return false;
}

bool is_ours(const struct sigaction& action);

// A handler that was installed over ours, and ours over it, hands the signal on to us by raising it again. That would
// go round for ever: what is raised again goes to the handler that was there before either.
void break_circle() {
    sigset_t pending;
    struct sigaction current = {};
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGBUS) != 1) return;
    if (sigaction(SIGBUS, nullptr, &current) == 0 && is_ours(current)) sigaction(SIGBUS, &original, nullptr);
}

void pass_on(int number, siginfo_t* info, void* context) {
    if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
        previous.sa_sigaction(number, info, context);
        return;
    }
    const bool is_fault = info->si_code > 0;  // of our own doing: the read is tried again when we return
    if (previous.sa_handler == SIG_IGN && !is_fault) return;
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
        break_circle();
        return;
    }
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &fallback, nullptr);
    if (!is_fault) raise(number);  // delivered when we return
}

void handle(int number, siginfo_t* info, void* context) {
    const int saved = errno;
    const bool is_fault = info->si_code > 0;
    if (!is_fault || !repair(reinterpret_cast<std::uintptr_t>(info->si_addr))) pass_on(number, info, context);
    errno = saved;
}

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

// Installs the handler, or installs it again where somebody has replaced it since (Python's faulthandler, say).
bool install() {
    struct sigaction current = {};
    if (sigaction(SIGBUS, nullptr, &current) != 0) return false;
    if (is_ours(current)) return true;
    previous = current;
    if (!is_installed) original = current;
    is_installed = true;
    const long size = sysconf(_SC_PAGESIZE);
    if (size > 0) page_bytes.store(static_cast<std::uintptr_t>(size));
    struct sigaction ours = {};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, nullptr) == 0;
}

void assign(Watched& watched, std::uintptr_t begin, std::uintptr_t end) {
    watched.version.fetch_add(1);
    watched.begin.store(begin);
    watched.end.store(end);
    watched.version.fetch_add(1);
}

}  // namespace

std::optional<Slot> watch(const void* begin, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(registration);
    if (!install()) return std::nullopt;
    const std::size_t end = table_end.load();
    std::size_t slot = 0;
    while (slot < end && table[slot].end.load() != 0) ++slot;
    if (slot == MAPPINGS_MAX) return std::nullopt;
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    table[slot].is_damaged.store(false);
    assign(table[slot], address, address + bytes);
    if (slot == end) table_end.store(end + 1);
    return slot;
}

void shrink(Slot slot, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(registration);
    const std::uintptr_t begin = table[slot].begin.load();
    assign(table[slot], begin, begin + bytes);
}

void unwatch(Slot slot) {
    const std::lock_guard<std::mutex> lock(registration);
    assign(table[slot], 0, 0);
}

bool is_damaged(Slot slot) { return table[slot].is_damaged.load(); }

}  // namespace magnitude::formats::guard
