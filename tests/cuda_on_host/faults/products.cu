/* The emulation's products against sums in double, for ragged sizes, all transpositions and all
 * epilogues. */
#include "check.h"

#include <cublasLt.h>
#include <cuda_on_host.h>

/* A matrix on the host and its copy on the device. */
struct Values {
    std::vector<float> host;
    float *device;
};

static Values values(size_t count, unsigned seed)
{
    Values v = { std::vector<float>(count), nullptr };
    for (float &x : v.host) {
        seed = seed * 1664525u + 1013904223u;
        x = (float)(int)(seed >> 8) / (float)(1 << 23) - 1;
    }
    v.device = device_array<float>(count);
    copy_in(v.device, v.host.data(), count);
    return v;
}

static std::vector<float> product(const Values &a, const Values &b, bool ta, bool tb, int m, int n,
                                  int k)
{
    std::vector<float> out((size_t)m * (size_t)n);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)a.host[(size_t)(ta ? l + i * k : i + l * m)] *
                       (double)b.host[(size_t)(tb ? j + l * n : l + j * k)];
            out[(size_t)(i + j * m)] = (float)sum;
        }
    return out;
}

static double difference(const std::vector<float> &got, const std::vector<float> &expected)
{
    double most = 0, largest = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        const double d = fabs((double)got[i] - (double)expected[i]);
        if (!(d <= most) && !isnan(most)) /* the first NaN stays */
            most = d;
    }
    return most / largest;
}

static void check_product(cublasHandle_t handle, bool ta, bool tb, int m, int n, int k)
{
    Values a = values((size_t)(m * k), 1), b = values((size_t)(k * n), 2);
    float *out = device_array<float>((size_t)(m * n));
    const float one = 1, zero = 0;
    const std::vector<float> expected = product(a, b, ta, tb, m, n, k);
    for (cublasComputeType_t compute : { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 }) {
        CHECK(cublasGemmEx(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                           m, n, k, &one, a.device, CUDA_R_32F, ta ? k : m, b.device, CUDA_R_32F,
                           tb ? n : k, &zero, out, CUDA_R_32F, m, compute,
                           CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
        const double error = difference(copy_out(out, (size_t)(m * n)), expected);
        if (compute == CUBLAS_COMPUTE_32F)
            CHECK(error < 1e-6);
        else
            CHECK(error < 2e-3 && error > 1e-6);
    }
    cudaFree(a.device);
    cudaFree(b.device);
    cudaFree(out);
}

/* ------------------------------------------------------------------------------------- cublasLt */
struct Lt {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    int m, n, k;
};

template <typename T> static void set(Lt lt, cublasLtMatmulDescAttributes_t attribute, T value)
{
    CHECK(cublasLtMatmulDescSetAttribute(lt.desc, attribute, &value, sizeof value) ==
          CUBLAS_STATUS_SUCCESS);
}

static void multiply(Lt lt, unsigned epilogue, const float *a, const float *b, float *d)
{
    set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulHeuristicResult_t result;
    int found;
    CHECK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.desc, lt.a, lt.b, lt.d, lt.d, preference, 1,
                                         &result, &found) == CUBLAS_STATUS_SUCCESS &&
          found == 1);
    cublasLtMatmulPreferenceDestroy(preference);
    const float one = 1, zero = 0;
    CHECK(cublasLtMatmul(lt.handle, lt.desc, &one, a, lt.a, b, lt.b, &zero, d, lt.d, d, lt.d,
                         &result.algo, nullptr, 0, cuda_stream()) == CUBLAS_STATUS_SUCCESS);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

enum { FORWARD_RELU, FORWARD_GELU };

/* The backward epilogue reads the auxiliary matrix that the forward epilogue has stored, so the
 * gradient checks both. */
static void check_epilogues(Lt lt, int kind)
{
    const int m = lt.m, n = lt.n, k = lt.k, ld = (m + 127) / 128 * 128;
    Values a = values((size_t)(m * k), 3), b = values((size_t)(k * n), 4), bias = values(m, 5);
    float *d = device_array<float>((size_t)(m * n)), *dbias = device_array<float>((size_t)m);
    float *aux = device_array<float>((size_t)(ld * n));
    std::vector<float> x = product(a, b, false, false, m, n, k), expected = x, gradient = x;
    std::vector<float> sums((size_t)m, 0);
    for (int i = 0; i < m * n; i++) {
        const double at = (double)x[(size_t)i] + (double)bias.host[(size_t)(i % m)];
        const double h = 1e-5;
        expected[(size_t)i] = (float)(kind == FORWARD_RELU ? fmax(at, 0) : gelu(at));
        const double derivative =
            kind == FORWARD_RELU ? at > 0 : (gelu(at + h) - gelu(at - h)) / (2 * h);
        gradient[(size_t)i] = (float)(derivative * (double)x[(size_t)i]);
        sums[(size_t)(i % m)] += gradient[(size_t)i];
    }
    set(lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.device);
    set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)ld);
    const bool relu = kind == FORWARD_RELU;
    multiply(lt, relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS, a.device,
             b.device, d);
    CHECK(difference(copy_out(d, (size_t)(m * n)), expected) < 1e-6);
    multiply(lt, relu ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX_BIAS, a.device,
             b.device, d);
    CHECK(difference(copy_out(d, (size_t)(m * n)), expected) < 1e-6);
    set(lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, dbias);
    multiply(lt, relu ? CUBLASLT_EPILOGUE_DRELU_BGRAD : CUBLASLT_EPILOGUE_DGELU_BGRAD, a.device,
             b.device, d);
    CHECK(difference(copy_out(d, (size_t)(m * n)), gradient) < 1e-5);
    CHECK(difference(copy_out(dbias, (size_t)m), sums) < 1e-5);
    for (float *memory : { a.device, b.device, bias.device, d, dbias, aux })
        cudaFree(memory);
}

static void check_operand_sums(Lt lt)
{
    const int m = lt.m, n = lt.n, k = lt.k;
    Values a = values((size_t)(m * k), 6), b = values((size_t)(k * n), 7);
    float *d = device_array<float>((size_t)(m * n)), *sums = device_array<float>((size_t)(m + n));
    std::vector<float> of_a((size_t)m, 0), of_b((size_t)n, 0);
    for (int l = 0; l < k; l++) {
        for (int i = 0; i < m; i++)
            of_a[(size_t)i] += a.host[(size_t)(i + l * m)];
        for (int j = 0; j < n; j++)
            of_b[(size_t)j] += b.host[(size_t)(l + j * k)];
    }
    set(lt, CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums);
    multiply(lt, CUBLASLT_EPILOGUE_BGRADA, a.device, b.device, d);
    CHECK(difference(copy_out(sums, (size_t)m), of_a) < 1e-6);
    multiply(lt, CUBLASLT_EPILOGUE_BGRADB, a.device, b.device, d);
    CHECK(difference(copy_out(sums, (size_t)n), of_b) < 1e-6);
    CHECK(difference(copy_out(d, (size_t)(m * n)), product(a, b, false, false, m, n, k)) < 1e-6);
    for (float *memory : { a.device, b.device, d, sums })
        cudaFree(memory);
}

/* Whether the heuristic finds an algorithm. */
static bool supported(Lt lt, unsigned epilogue)
{
    set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        lt.handle, lt.desc, lt.a, lt.b, lt.d, lt.d, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    return status == CUBLAS_STATUS_SUCCESS && found == 1;
}

/* cublasLt's documentation forbids these epilogues, leading dimensions and types. */
static void check_refusals(Lt lt)
{
    const int64_t relu_ld = (lt.m + 127) / 128 * 128, gelu_ld = (lt.m + 7) / 8 * 8;
    for (unsigned epilogue : { CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,
                               CUBLASLT_EPILOGUE_DRELU_BGRAD }) {
        set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, relu_ld);
        CHECK(supported(lt, epilogue));
        set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, relu_ld + 8);
        CHECK(!supported(lt, epilogue));
        set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, relu_ld - 128);
        CHECK(!supported(lt, epilogue));
    }
    for (unsigned epilogue : { CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU }) {
        set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gelu_ld);
        CHECK(supported(lt, epilogue));
        set(lt, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gelu_ld + 4);
        CHECK(!supported(lt, epilogue));
    }
    CHECK(supported(lt, CUBLASLT_EPILOGUE_BGRADB));
    CHECK(!supported(lt, CUBLASLT_EPILOGUE_BGRADB | CUBLASLT_EPILOGUE_BGRADA));
    CHECK(!supported(lt, CUBLASLT_EPILOGUE_BGRADB | CUBLASLT_EPILOGUE_BIAS));
    set(lt, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)CUDA_R_16BF);
    CHECK(!supported(lt, CUBLASLT_EPILOGUE_BGRADB) && !supported(lt, CUBLASLT_EPILOGUE_BIAS));
    set(lt, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)-1);
    tapegrad_cuda_on_host_refuse_epilogues(CUBLASLT_EPILOGUE_BGRADB);
    CHECK(!supported(lt, CUBLASLT_EPILOGUE_BGRADB) && supported(lt, CUBLASLT_EPILOGUE_BIAS));
    tapegrad_cuda_on_host_refuse_epilogues(0);
}

static void check_lt(int m, int n, int k)
{
    Lt lt = { nullptr, nullptr, nullptr, nullptr, nullptr, m, n, k };
    cublasLtCreate(&lt.handle);
    cublasLtMatmulDescCreate(&lt.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&lt.a, CUDA_R_32F, (uint64_t)m, (uint64_t)k, m);
    cublasLtMatrixLayoutCreate(&lt.b, CUDA_R_32F, (uint64_t)k, (uint64_t)n, k);
    cublasLtMatrixLayoutCreate(&lt.d, CUDA_R_32F, (uint64_t)m, (uint64_t)n, m);
    check_epilogues(lt, FORWARD_RELU);
    check_epilogues(lt, FORWARD_GELU);
    check_operand_sums(lt);
    check_refusals(lt);
    cublasLtMatrixLayoutDestroy(lt.a);
    cublasLtMatrixLayoutDestroy(lt.b);
    cublasLtMatrixLayoutDestroy(lt.d);
    cublasLtMatmulDescDestroy(lt.desc);
    cublasLtDestroy(lt.handle);
}

int main()
{
    cublasHandle_t handle;
    CHECK(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    cublasSetStream(handle, cuda_stream());
    for (int shape = 0; shape < 4; shape++) {
        const int sizes[4][3] = { { 1, 1, 1 }, { 17, 7, 300 }, { 64, 12, 5 }, { 33, 50, 257 } };
        for (int transposed = 0; transposed < 4; transposed++)
            if (shape > 0)
                check_product(handle, transposed & 1, transposed >> 1, sizes[shape][0],
                              sizes[shape][1], sizes[shape][2]);
        if (shape > 0)
            check_lt(sizes[shape][0], sizes[shape][1], sizes[shape][2]);
    }
    cublasDestroy(handle);
    cudaStreamDestroy(cuda_stream());
    return checked();
}
