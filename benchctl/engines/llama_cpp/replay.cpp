// llama-replay: a target alone that reads an answer again in the steps (batches) in which llama-server made it.
//
// It takes llama-server's command line, so that model, context and kernels are the same, and the recipe's sampling as
// flags of that command line. Each line of its input is a request, each line of its output the result:
//   {"prompt": [ids], "answer": [ids], "steps": [[drafted, accepted, ...], ...]}
// and where the request has settings of its own, these under their names in /completion ("json_schema", "grammar", …).
//   {"tokens": [[index, likeliest, gap], ...]}, or {"error": "..."}
// `tokens` has every token of the answer that the target's sampler does not choose in that step's row; `gap` is by how
// many nats it prefers its own, null where the answer's token is forbidden. Input and output are stdin and stdout, or
// the Unix socket that LLAMA_REPLAY_SOCKET names. Everything below follows tools/server/server-context.cpp.
#include "arg.h"
#include "build-info.h"
#include "common.h"
#include "json-schema-to-grammar.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"
#include "speculative.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

using json = nlohmann::ordered_json;  // a schema's grammar depends on the order of its keys
using ids  = std::vector<llama_token>;

static const int SEQ     = 0;
static const int WIDEST  = 128;  // tokens of a step, at least, whose logits there is room for
static const size_t MOST = 1 << 24;  // entries of a list in a request

[[noreturn]] static void refuse(const std::string & reason) { throw std::invalid_argument(reason); }

// Types whose head reads hidden states of the target: they change what the target computes and keeps.
static bool reads_target(common_speculative_type type) {
    return type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP    || type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 ||
           type == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH || type == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK;
}

static std::vector<int64_t> integers(const json & value, const char * name) {
    if (!value.is_array() || value.size() > MOST) refuse(std::string(name) + " is no list of numbers");
    std::vector<int64_t> result;
    for (const auto & entry : value) {
        if (!entry.is_number_integer() || (entry.is_number_unsigned() && entry.get<uint64_t>() > INT32_MAX)) {
            refuse(std::string(name) + " holds something other than small whole numbers");
        }
        result.push_back(entry.get<int64_t>());
    }
    return result;
}

struct replayer {
    common_params params;
    common_init_result_ptr init;
    common_speculative_init_result_ptr draft;
    common_speculative_ptr spec;
    llama_model * model = nullptr;
    llama_context * ctx = nullptr;
    common_context_seq_rm_type rollback = COMMON_CONTEXT_SEQ_RM_TYPE_NO;
    common_sampler_ptr sampler;  // chooses as the server's does
    common_sampler_ptr scores;   // keeps every token, with the recipe's penalties and biases in its logit
    common_prompt_checkpoint checkpoint;
    bool constrained = false;    // by a grammar
    bool outside = false;        // a token of the answer is outside the grammar: the sampler cannot go on from there

    // server_context_impl::load_model
    void load() {
        if (params.n_parallel != 1) refuse("it reads for one slot: -np 1");
        if (params.sampling.backend_sampling) refuse("with --backend-sampling there are no logits to read");
        const auto limits = common_speculative_get_output_limits(
            params.n_batch, params.n_parallel, common_speculative_n_max(&params.speculative));
        params.n_outputs_max         = std::min(params.n_batch, std::max(limits.total, WIDEST));
        params.n_outputs_max_per_seq = params.n_outputs_max;
        init  = common_init_from_params(params);
        model = init->model();
        ctx   = init->context();
        if (model == nullptr || ctx == nullptr) refuse("the model or its context could not be made");

        const auto & types = params.speculative.types;
        if (std::any_of(types.begin(), types.end(), reads_target)) {
            common_params params_dft = common_base_params_to_speculative(params);
            draft = common_speculative_init_from_params(params_dft, model, ctx);
            if (draft->context() == nullptr) refuse("the head's context could not be made");
            params.speculative.draft.ctx_tgt = ctx;
            params.speculative.draft.ctx_dft = draft->context();
        }
        rollback = common_context_can_seq_rm(ctx);
        if (draft) spec.reset(common_speculative_init(params.speculative, params.n_parallel));
        common_set_adapter_lora(ctx, params.lora_adapters);
        llama_set_embeddings(ctx, false);
    }

    // A schema of the request stands behind a grammar of all requests (server-schema.cpp).
    void make_samplers(const json & request) {
        auto chosen = params.sampling;
        if (request.contains("samplers")) chosen.samplers = common_sampler_types_from_names(request["samplers"]);
        chosen.seed            = request.value("seed", chosen.seed);
        chosen.penalty_last_n  = request.value("repeat_last_n", chosen.penalty_last_n);
        chosen.penalty_repeat  = request.value("repeat_penalty", chosen.penalty_repeat);
        chosen.penalty_freq    = request.value("frequency_penalty", chosen.penalty_freq);
        chosen.penalty_present = request.value("presence_penalty", chosen.penalty_present);
        if (request.contains("logit_bias")) {
            chosen.logit_bias = chosen.ignore_eos ? chosen.logit_bias_eog : std::vector<llama_logit_bias>();
            for (const auto & pair : request["logit_bias"]) chosen.logit_bias.push_back({pair[0], pair[1]});
        }
        if (request.contains("grammar")) chosen.grammar = {COMMON_GRAMMAR_TYPE_USER, request["grammar"]};
        if (request.contains("json_schema") && chosen.grammar.empty()) {
            auto schema = common_json::parse(request["json_schema"].dump());
            if (schema.is_object() && schema.empty()) schema["type"] = "object";
            chosen.grammar = {COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, json_schema_to_grammar(schema)};
        }
        constrained = !chosen.grammar.empty();
        outside     = false;
        sampler.reset(common_sampler_init(model, chosen));
        auto all = chosen;
        all.samplers.clear();
        for (auto kind : chosen.samplers) {
            if (kind == COMMON_SAMPLER_TYPE_PENALTIES || kind == COMMON_SAMPLER_TYPE_DRY) all.samplers.push_back(kind);
        }
        scores.reset(common_sampler_init(model, all));
    }

    void accept(llama_token token, bool generated) {
        common_sampler_accept(sampler.get(), token, generated);
        common_sampler_accept(scores.get(), token, generated);
    }

    void remove_from(llama_pos begin) {
        if (!llama_memory_seq_rm(llama_get_memory(ctx), SEQ, begin, -1)) refuse("its memory cannot go back there");
    }

    void decode(common_batch & batch) {
        const int status = llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        if (status != 0) refuse("llama_process failed with status " + std::to_string(status));
        llama_synchronize(ctx);
    }

    // Read a prompt in the server's own batches (pre_decode); return the row that decides the first token.
    int read_prompt(const ids & prompt) {
        const int n = prompt.size(), n_batch = llama_n_batch(ctx), n_ubatch = llama_n_ubatch(ctx);
        const bool window = !params.swa_full && llama_model_n_swa(model) > 0;
        const bool cuts   = params.n_ctx_checkpoints > 0 && (rollback != COMMON_CONTEXT_SEQ_RM_TYPE_PART || window);
        remove_from(0);
        common_batch batch(ctx);
        for (int i = 0; i < n; ++i) {
            batch.add(prompt[i], i, SEQ, i + 1 == n);
            const int left = n - (i + 1);
            const bool cut = cuts && (left == std::min(n_batch, 4 + n_ubatch) || left == std::min(n_batch, 4));
            if (left > 0 && (cut || batch.size() == n_batch)) {
                decode(batch);
                batch.clear();
            }
        }
        for (auto token : prompt) accept(token, false);
        decode(batch);
        return batch.size() - 1;
    }

    // Note in `tokens` whether the sampler chooses the answer's token in a row, then go on from the answer's token.
    void compare(const ids & answer, size_t index, int row, json & tokens) {
        const llama_token chosen = common_sampler_sample(sampler.get(), ctx, row), token = answer[index];
        if (chosen != token) {
            common_sampler_sample(scores.get(), ctx, row, true);
            const auto * all = common_sampler_get_candidates(scores.get(), false);
            float of_chosen = -INFINITY, of_token = -INFINITY;
            for (size_t i = 0; i < all->size; ++i) {
                if (all->data[i].id == chosen) of_chosen = all->data[i].logit;
                if (all->data[i].id == token) of_token = all->data[i].logit;
            }
            const float gap = of_chosen - of_token;
            tokens.push_back({index, chosen, std::isfinite(gap) ? json(gap) : json(nullptr)});
            outside = !std::isfinite(gap) && constrained;
        }
        if (!outside) accept(token, true);
    }

    // Read a step: `start` tokens of the answer are there before it, the last of them not yet read.
    void read_step(const ids & prompt, const ids & answer, size_t start, const std::vector<int64_t> & step, json & tokens) {
        const llama_pos begin = prompt.size() + start - 1;
        const bool bounded = rollback == COMMON_CONTEXT_SEQ_RM_TYPE_RS;
        const bool whole   = rollback == COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
        const int64_t snapshots = llama_n_rs_seq(ctx);
        if (step[0] > 0 && (whole || (bounded && step[0] > snapshots))) {
            checkpoint.update_pos(begin, 0, begin - 1);
            checkpoint.update_tgt(ctx, SEQ, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        }
        for (size_t reading = 1; reading < step.size(); ++reading) {
            // What is read again are the tokens that were accepted and the target's own.
            const int64_t drafted = reading == 1 ? step[0] : step[reading - 1] + 1, accepted = step[reading];
            const int64_t unread = drafted - accepted;
            const bool restores  = unread > 0 && (whole || (bounded && unread > snapshots)), last = reading + 1 == step.size();
            if (restores == last) refuse("this target goes back to checkpoints elsewhere than the steps say");
            const int64_t kept = *std::min_element(step.begin() + reading, step.end());
            common_batch batch(ctx);
            batch.add(answer[start - 1], begin, SEQ, true);
            for (int64_t i = 0; i < drafted; ++i) {  // a row does not depend on those behind it: any token will do there
                const bool given = i < kept && start + i < answer.size();
                batch.add(given ? answer[start + i] : answer[start - 1], begin + 1 + i, SEQ, true);
            }
            decode(batch);
            if (restores) {
                checkpoint.load_tgt(ctx, SEQ, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
                remove_from(begin);
                continue;
            }
            for (int64_t i = 0; i <= accepted && start + i < answer.size() && !outside; ++i) compare(answer, start + i, i, tokens);
            if (drafted > 0) remove_from(begin + 1 + accepted);
        }
    }

    ids tokens_of(const json & request, const char * name) {
        if (!request.contains(name)) refuse(std::string("there is no ") + name);
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        ids result;
        for (auto id : integers(request[name], name)) {
            if (id < 0 || id >= n_vocab) refuse(std::string(name) + " holds a token that the model has not");
            result.push_back(id);
        }
        if (result.empty()) refuse(std::string(name) + " is empty");
        return result;
    }

    // The steps bring the answer, of which the last may bring more, and fit the context.
    std::vector<std::vector<int64_t>> steps_of(const json & request, size_t prompt, size_t answer) {
        if (!request.contains("steps") || !request["steps"].is_array()) refuse("there are no steps");
        std::vector<std::vector<int64_t>> steps;
        size_t brought = 1;
        for (const auto & entry : request["steps"]) {
            auto step = integers(entry, "a step");
            if (step.size() < 2 || brought >= answer) refuse("the steps are not those of the answer");
            int64_t drafted = step[0], longest = drafted;
            for (size_t i = 1; i < step.size(); ++i) {
                if (drafted < 0 || step[i] < 0 || step[i] > drafted) refuse("a step accepts more than it drafted");
                longest = std::max(longest, drafted);
                drafted = step[i] + 1;
            }
            if (longest >= params.n_outputs_max) refuse("a step is wider than the batch");
            if (prompt + brought + longest > llama_n_ctx_seq(ctx)) refuse("the answer is longer than the context");
            brought += step.back() + 1;
            steps.push_back(std::move(step));
        }
        if (brought < answer) refuse("the steps are not those of the answer");
        return steps;
    }

    json replay(const json & request) {
        if (!request.is_object()) refuse("the line is no JSON object");
        const ids prompt = tokens_of(request, "prompt"), answer = tokens_of(request, "answer");
        if (prompt.size() >= llama_n_ctx_seq(ctx)) refuse("the prompt is longer than the context");
        const auto steps = steps_of(request, prompt.size(), answer.size());
        make_samplers(request);
        json tokens = json::array();
        compare(answer, 0, read_prompt(prompt), tokens);
        size_t start = 1;
        for (const auto & step : steps) {
            if (outside) break;
            read_step(prompt, answer, start, step, tokens);
            start += step.back() + 1;
        }
        return {{"tokens", tokens}};
    }
};

// The socket takes the places of stdin and stdout; whatever else is printed goes to stderr.
static FILE * connect_output() {
    int out = dup(STDOUT_FILENO);
    if (const char * path = getenv("LLAMA_REPLAY_SOCKET")) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        if (strlen(path) >= sizeof(address.sun_path)) refuse("LLAMA_REPLAY_SOCKET is too long");
        strcpy(address.sun_path, path);
        const int end = socket(AF_UNIX, SOCK_STREAM, 0);
        if (end < 0 || connect(end, (sockaddr *) &address, sizeof(address)) != 0) refuse("LLAMA_REPLAY_SOCKET does not answer");
        dup2(end, STDIN_FILENO);
        dup2(end, out);
    }
    dup2(STDERR_FILENO, STDOUT_FILENO);
    return fdopen(out, "w");
}

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    try {
        FILE * out = connect_output();
        const auto say = [&](const json & line) {
            fprintf(out, "%s\n", line.dump(-1, ' ', true, json::error_handler_t::replace).c_str());
            fflush(out);
        };
        common_init();
        replayer self;
        if (!common_params_parse(argc, argv, self.params, LLAMA_EXAMPLE_SERVER)) return 1;
        llama_backend_init();
        llama_numa_init(self.params.numa);
        self.load();
        say({{"ready", true}, {"commit", llama_commit()}});
        for (std::string line; std::getline(std::cin, line);) {
            try {
                say(self.replay(json::parse(line)));
            } catch (const std::exception & error) {
                say({{"error", error.what()}});
            }
        }
    } catch (const std::exception & error) {
        fprintf(stderr, "llama-replay: %s\n", error.what());
        return 1;
    }
    return 0;
}
