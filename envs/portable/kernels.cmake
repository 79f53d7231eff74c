# Puts kernels.cpp into ggml-cpu; read at the end of ggml's own CMakeLists.txt.
set(here "${CMAKE_CURRENT_LIST_DIR}")
set(ggml "${CMAKE_CURRENT_SOURCE_DIR}/src")

function(kvgraft_define source)
  set_source_files_properties("${source}" DIRECTORY "${ggml}"
    PROPERTIES COMPILE_DEFINITIONS "${ARGN}")
endfunction()

set(unused "")
foreach(name IN ITEMS
    quantize_row_q8_0 quantize_row_q8_1
    ggml_vec_dot_q8_0_q8_0 ggml_vec_dot_q4_0_q8_0 ggml_vec_dot_q5_0_q8_0
    ggml_vec_dot_q4_1_q8_1 ggml_vec_dot_q5_1_q8_1
    ggml_vec_dot_q4_K_q8_K ggml_vec_dot_q5_K_q8_K ggml_vec_dot_q6_K_q8_K)
  list(APPEND unused "${name}=unused_${name}")
endforeach()
kvgraft_define("${ggml}/ggml-cpu/quants.c" ${unused})
kvgraft_define("${ggml}/ggml-cpu/vec.cpp"
  ggml_vec_dot_f32=unused_ggml_vec_dot_f32 ggml_vec_dot_f16=unused_ggml_vec_dot_f16)
# ggml-cpu.c asks llamafile_sgemm first; the one it finds is that of kernels.cpp.
kvgraft_define("${ggml}/ggml-cpu/ggml-cpu.c" GGML_USE_LLAMAFILE)

if(KVGRAFT_AVX512)
  target_sources(ggml-cpu PRIVATE "${here}/kernels.cpp" "${here}/kernels_avx512.cpp")
  kvgraft_define("${here}/kernels.cpp" KVGRAFT_KERNELS KVGRAFT_AVX512)
  kvgraft_define("${here}/kernels_avx512.cpp" KVGRAFT_KERNELS)
  # GCC 12 warns of a variable in its own header.
  set_source_files_properties("${here}/kernels_avx512.cpp" DIRECTORY "${ggml}" PROPERTIES
    COMPILE_OPTIONS
    "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-Wno-maybe-uninitialized")
else()
  target_sources(ggml-cpu PRIVATE "${here}/kernels.cpp")
  kvgraft_define("${here}/kernels.cpp" KVGRAFT_KERNELS)
endif()
