#include <cstdio>

int main() {
    std::printf("version: 0.0.1-fake (build %d, commit %s)\n", BUILD_NUMBER, BUILD_COMMIT);
    return 0;
}
