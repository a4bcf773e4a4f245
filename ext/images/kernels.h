/* The kernels of images: a table per operation. */
#ifndef TAPEGRAD_IMAGES_KERNELS_H
#define TAPEGRAD_IMAGES_KERNELS_H

#include "ext/images/batchnorm.h"
#include "ext/images/convolution.h"
#include "ext/images/windows.h"

typedef struct ConvolutionKernels {
    /* out [B, rows, columns, O] = x [B, H, W, C] * weight [O, height, width, C] + bias [O] or NULL;
     * weight and bias are Real */
    void (*forward)(Real *out, const Real *x, const Real *weight, const Real *bias, Convolution c);
    /* dx, dweight, which is Real, <- the gradients, from dout */
    void (*backward_x)(Gradient dx, const Real *dout, const Real *weight, Convolution c);
    void (*backward_weight)(Gradient dweight, const Real *dout, const Real *x, Convolution c);
} ConvolutionKernels;

typedef struct PoolKernels {
    /* out [B, rows, columns, C] = the first maximum of each window of x [B, H, W, C]; index,
     * likewise, = its h W + w */
    void (*max)(Real *out, int32_t *index, const Real *x, Windows s);
    /* out = the sum of each window / (height width) */
    void (*average)(Real *out, const Real *x, Windows s);
    /* dx <- dout at the pixels of index or, if it is NULL, dout / (height width) at all pixels */
    void (*backward)(Gradient dx, const Real *dout, const int32_t *index, Windows s);
} PoolKernels;

typedef struct UnfoldKernels {
    /* out [B, rows, columns, height, width, C] = the windows of x [B, H, W, C] */
    void (*forward)(Real *out, const Real *x, Windows u);
    /* dx <- their sums */
    void (*backward)(Gradient dx, const Real *dout, Windows u);
} UnfoldKernels;

typedef struct BatchNormKernels {
    /* out [R, C] = batchnorm of each column of x [R, C]; writes mean and r and, in training, the
     * running statistics */
    void (*forward)(Real *out, BatchNormArguments norm);
    /* dx [R, C], dweight, dbias [C], Real, <- the gradients, from dout [R, C] */
    void (*backward)(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                     BatchNormArguments norm);
} BatchNormKernels;

extern const ConvolutionKernels convolution_plain, convolution_cpu, convolution_cpu_bf16,
    convolution_cuda, convolution_cuda_bf16;
extern const PoolKernels pool_plain, pool_cpu, pool_cpu_bf16, pool_cuda, pool_cuda_bf16;
extern const UnfoldKernels unfold_plain, unfold_cpu, unfold_cpu_bf16, unfold_cuda, unfold_cuda_bf16;
extern const BatchNormKernels batchnorm_plain, batchnorm_cpu, batchnorm_cpu_bf16, batchnorm_cuda,
    batchnorm_cuda_bf16;

/* unfold on the CPU, too. */
C_FUNCTION void unfold_forward_plain(Real *out, const Real *x, Windows u);

typedef struct ImageKernels {
    const ConvolutionKernels *convolution;
    const PoolKernels *pool;
    const UnfoldKernels *unfold;
    const BatchNormKernels *batchnorm;
} ImageKernels;

/* For activations like x. */
C_FUNCTION const ImageKernels *image_kernels(const Tensor *x);

#endif
