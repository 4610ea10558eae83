// Stands in for the toolkit's header, which the wheels leave out: every marker vanishes on the host.
#pragma once
#define __host__
#define __device__
#define __global__
#define __constant__
#define __shared__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __specialization_static static
