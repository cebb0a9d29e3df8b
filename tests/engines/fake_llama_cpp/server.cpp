// Stands in for llama-server: it answers enough to be tried with a model, one token to whatever it is asked. Built with
// CRASHES_ON_QUANTIZED it ends as a build with broken AMX code does, unless it is built WITHOUT_THE_FEATURE.
#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#ifdef FAKE_DRIVER
extern "C" int cuInit(unsigned flags);
const int driver = cuInit(0);
#endif

#ifdef FAKE_BROKEN
int broken = this_is_not_declared;
#endif

static const char * HELP =
    "-m,    --model FNAME            model path\n"
    "-c,    --ctx-size N             size of the context\n"
    "-np,   --parallel N             number of slots\n"
    "-b,    --batch-size N           batch size\n"
    "-ub,   --ubatch-size N          physical batch size\n"
    "-t,    --threads N              threads\n"
    "--host HOST                     address\n"
    "--port PORT                     port\n"
    "-md,   --model-draft FNAME      draft model\n"
    "--draft-max, --draft N          draft tokens\n"
    "--draft-min N                   draft tokens\n";

// general.file_type in the header of a GGUF: 0 and 1 are f32 and f16.
[[maybe_unused]] static bool is_quantized(const char * path) {
    char block[4096];
    std::FILE * file = std::fopen(path, "rb");
    const std::string head(block, std::fread(block, 1, sizeof block, file));
    std::fclose(file);
    const std::string key = "general.file_type";
    const size_t found = head.find(key);
    return found != std::string::npos && head[found + key.size() + 4] > 1;
}

static void serve(int port, bool crash) {
    const int listening = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (bind(listening, (sockaddr *) &address, sizeof address) || listen(listening, 8)) {
        std::exit(1);
    }
    std::printf("main: HTTP server is listening, hostname: 127.0.0.1, port: %d\n", port);
    std::fflush(stdout);
    for (;;) {
        const int peer = accept(listening, nullptr, nullptr);
        std::string request;
        char block[4096];
        size_t ends = std::string::npos;
        while (ends == std::string::npos || request.size() < ends) {
            const ssize_t got = read(peer, block, sizeof block);
            if (got <= 0) {
                break;
            }
            request.append(block, got);
            const size_t blank = request.find("\r\n\r\n");
            if (blank != std::string::npos) {
                const size_t length = request.find("ength: ");
                ends = blank + 4 + (length < blank ? std::strtoul(request.c_str() + length + 7, nullptr, 10) : 0);
            }
        }
        if (crash && request.rfind("POST", 0) == 0) {
            std::raise(SIGSEGV);
        }
        const char * answer =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 15\r\n\r\n{\"tokens\": [1]}";
        if (write(peer, answer, std::strlen(answer)) < 0) {
            std::exit(1);
        }
        close(peer);
    }
}

int main(int count, char ** words) {
    bool crash = false;
    int port = 0;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i];
        if (word == "--help") {
            std::printf("%s", HELP);
            return 0;
        }
        if (word == "--port") {
            port = std::atoi(words[i + 1]);
        }
#if defined(CRASHES_ON_QUANTIZED) && !defined(WITHOUT_THE_FEATURE)
        if (word == "-m") {
            crash = is_quantized(words[i + 1]);
        }
#endif
    }
    if (port) {
        serve(port, crash);
    }
    std::printf("version: 0.0.1-fake (build %d, commit %s)\n", BUILD_NUMBER, BUILD_COMMIT);
    return 0;
}
