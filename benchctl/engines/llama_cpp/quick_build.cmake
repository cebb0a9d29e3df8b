# Read by CMake while it configures llama.cpp: a program of benchctl's own, llama-replay, which reads answers again; and
# what shortens the build and leaves alone what is measured. ggml, the graphs
# of llama and the files in `hot` keep llama.cpp's own -O3: all that computes, drafts, samples and answers token by token.
# What runs at the start or once a request (options, downloads, chat templates, JSON schemas, HTTP headers) is optimized
# less, images and sound not at all, and several files are compiled at a time, since most of the time goes into headers.
add_executable(llama-replay ${CMAKE_CURRENT_LIST_DIR}/replay.cpp)
target_compile_features(llama-replay PRIVATE cxx_std_17)
target_link_libraries(llama-replay PRIVATE llama-common llama)
set_target_properties(llama-replay PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(CMAKE_VERSION VERSION_LESS 3.19 OR MSVC)
  return()  # nothing can be said of targets that are not there yet
endif()

set(benchctl_hot
  common/sampling.cpp common/speculative.cpp common/ngram-cache.cpp common/ngram-map.cpp common/ngram-mod.cpp
  common/common.cpp tools/server/server-context.cpp tools/server/server-queue.cpp)
# These define names that other files of their target define, too.
set(benchctl_alone common/json.cpp tools/mtmd/mtmd-helper.cpp tools/mtmd/mtmd-helper-gen.cpp)
# Of llama itself: loading, converting, and grammars.
set(benchctl_cold
  src/llama-arch.cpp src/llama-chat.cpp src/llama-grammar.cpp src/llama-model-loader.cpp src/llama-model-saver.cpp
  src/llama-quant.cpp src/unicode-data.cpp)

function(benchctl_lighter flag)
  foreach(target ${ARGN})
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE ${flag})
    endif()
  endforeach()
endfunction()

function(benchctl_of_source target property value)
  if(TARGET ${target})
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(file ${ARGN})
      set_property(SOURCE "${PROJECT_SOURCE_DIR}/${file}" DIRECTORY "${folder}" PROPERTY ${property} ${value})
    endforeach()
  endif()
endfunction()

function(benchctl_quick_build)
  benchctl_lighter(-O1 llama-common server-context llama-server-impl cpp-httplib llama-perplexity-impl)
  benchctl_lighter(-O0 mtmd)
  benchctl_of_source(llama COMPILE_OPTIONS -O1 ${benchctl_cold})
  foreach(target llama-common mtmd server-context)
    benchctl_of_source(${target} SKIP_UNITY_BUILD_INCLUSION ON ${benchctl_hot} ${benchctl_alone})
    benchctl_of_source(${target} COMPILE_OPTIONS -O3 ${benchctl_hot})
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL benchctl_quick_build)
