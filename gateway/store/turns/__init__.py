"""SQL of turns and jobs: queue, approvals, lineage, traces and queue depths."""
