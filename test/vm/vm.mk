# The rig's own tests: they start guests, and fail if a guest can't be had.

.PHONY: test-rig
test-rig: ## Tests of the rig itself: guests that pass, fail, panic, hang and lose power
	go test -tags rig -count=1 -timeout 20m ./test/vm/guest/... ./test/vm/testexec
