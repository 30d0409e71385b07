// Package bench measures what pod churn costs on a machine with ublk: the
// kernel's own part, the life of a device with and without the device server, and
// the CSI calls of a node beside loop devices.
//
// A run makes a Report: raw samples of series, with the conditions they were taken
// under. Reports of several rounds and kernels merge into one, and only then
// become tables and ratios. In each round the ways that are compared take turns,
// and the turns begin at another one each round, so that a machine that gets
// slower or quicker meanwhile does so for all.
//
// A run touches only devices that carry its own tag, and removes all that it made
// when it ends, whichever way.
package bench
