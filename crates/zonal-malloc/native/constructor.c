/*
 * The constructor of the library.
 *
 * It must run after that of mimalloc. Constructors without a priority run in the order of the object files, and the build
 * script passes this one last.
 */
extern void zonal_malloc_start(void);

__attribute__((constructor)) static void start(void)
{
	zonal_malloc_start();
}
