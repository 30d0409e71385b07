// Package ublk serves block devices from user space through Linux's ublk
// driver (drivers/block/ublk_drv.c, include/uapi/linux/ublk_cmd.h).
package ublk
