/* What a Cortex-M does before main on an emulated board: stack, floating point, files by the host. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t __stack;
extern void initialise_monitor_handles(void);
extern int main(void);

void _init(void);
void _fini(void);

void _init(void) {}
void _fini(void) {}

static void reset(void)
{
    *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20; /* CPACR: floating point on */
    __asm volatile("dsb\n isb");
    initialise_monitor_handles();
    exit(main());
}

static void stop(void)
{
    exit(9);
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &__stack,           (const void *)reset, (const void *)stop, (const void *)stop,
    (const void *)stop, (const void *)stop,  (const void *)stop,
};
