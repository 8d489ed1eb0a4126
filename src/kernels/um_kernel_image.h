/* The compiled kernels, embedded by the build: one image per .cu file. */
#ifndef UM_KERNEL_IMAGE_H
#define UM_KERNEL_IMAGE_H

#include <stddef.h>

typedef struct um_kernel_image {
    const char *name;          /* stem of the .cu file */
    const unsigned char *data; /* fatbin, 8-byte aligned */
    size_t size;               /* bytes */
} um_kernel_image;

extern const um_kernel_image um_kernel_images[];
extern const size_t um_kernel_image_count;

#endif
