package ibv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// pairs are our structs and fields beside the system's.
var pairs = []struct {
	ours, theirs string
	fields       [][2]string
	prefix       bool // ours is only the beginning
}{
	{"gv_gid", "union ibv_gid", nil, false},
	{"gv_device_attr", "struct ibv_device_attr", [][2]string{{"node_guid", "node_guid"}, {"max_mr_size", "max_mr_size"}, {"vendor", "vendor_id"}, {"max_qp", "max_qp"},
		{"caps", "device_cap_flags"}, {"max_sge", "max_sge"}, {"max_cqe", "max_cqe"}, {"max_mr", "max_mr"}, {"max_qp_rd_atom", "max_qp_rd_atom"},
		{"max_qp_init_rd_atom", "max_qp_init_rd_atom"}, {"atomic_cap", "atomic_cap"}, {"max_ah", "max_ah"}, {"max_srq", "max_srq"}, {"max_srq_wr", "max_srq_wr"}, {"ports", "phys_port_cnt"}}, false},
	{"gv_port_attr", "struct ibv_port_attr", [][2]string{{"active_mtu", "active_mtu"}, {"gids", "gid_tbl_len"}, {"max_msg", "max_msg_sz"}, {"pkeys", "pkey_tbl_len"},
		{"lid", "lid"}, {"width", "active_width"}, {"speed", "active_speed"}, {"link_layer", "link_layer"}, {"caps2", "port_cap_flags2"}}, false},
	{"gv_gid_entry", "struct ibv_gid_entry", [][2]string{{"index", "gid_index"}, {"port", "port_num"}, {"type", "gid_type"}, {"netdev", "ndev_ifindex"}}, false},
	{"gv_qp_cap", "struct ibv_qp_cap", [][2]string{{"send_wr", "max_send_wr"}, {"recv_wr", "max_recv_wr"}, {"inline_data", "max_inline_data"}}, false},
	{"gv_qp_init", "struct ibv_qp_init_attr", [][2]string{{"send_cq", "send_cq"}, {"srq", "srq"}, {"cap", "cap"}, {"type", "qp_type"}, {"signal_all", "sq_sig_all"}}, false},
	{"gv_route", "struct ibv_global_route", [][2]string{{"flow", "flow_label"}, {"index", "sgid_index"}, {"hops", "hop_limit"}, {"traffic", "traffic_class"}}, false},
	{"gv_ah_attr", "struct ibv_ah_attr", [][2]string{{"lid", "dlid"}, {"sl", "sl"}, {"global", "is_global"}, {"port", "port_num"}}, false},
	{"gv_qp_attr", "struct ibv_qp_attr", [][2]string{{"state", "qp_state"}, {"mtu", "path_mtu"}, {"qkey", "qkey"}, {"rq_psn", "rq_psn"}, {"sq_psn", "sq_psn"}, {"peer", "dest_qp_num"},
		{"access", "qp_access_flags"}, {"cap", "cap"}, {"ah", "ah_attr"}, {"pkey", "pkey_index"}, {"max_rd_atomic", "max_rd_atomic"}, {"max_dest_rd_atomic", "max_dest_rd_atomic"},
		{"min_rnr_timer", "min_rnr_timer"}, {"port", "port_num"}, {"timeout", "timeout"}, {"retry", "retry_cnt"}, {"rnr_retry", "rnr_retry"}, {"rate", "rate_limit"}}, false},
	{"gv_sge", "struct ibv_sge", [][2]string{{"addr", "addr"}, {"bytes", "length"}, {"lkey", "lkey"}}, false},
	{"gv_send_wr", "struct ibv_send_wr", [][2]string{{"id", "wr_id"}, {"next", "next"}, {"list", "sg_list"}, {"entries", "num_sge"}, {"opcode", "opcode"}, {"flags", "send_flags"}, {"imm", "imm_data"},
		{"wr.rdma.addr", "wr.rdma.remote_addr"}, {"wr.rdma.rkey", "wr.rdma.rkey"}, {"wr.atomic.add", "wr.atomic.compare_add"}, {"wr.atomic.swap", "wr.atomic.swap"}, {"wr.atomic.rkey", "wr.atomic.rkey"},
		{"wr.ud.ah", "wr.ud.ah"}, {"wr.ud.qpn", "wr.ud.remote_qpn"}, {"wr.ud.qkey", "wr.ud.remote_qkey"}, {"srqn", "qp_type.xrc.remote_srqn"}}, false},
	{"gv_recv_wr", "struct ibv_recv_wr", [][2]string{{"id", "wr_id"}, {"next", "next"}, {"list", "sg_list"}, {"entries", "num_sge"}}, false},
	{"gv_wc", "struct ibv_wc", [][2]string{{"id", "wr_id"}, {"status", "status"}, {"opcode", "opcode"}, {"vendor", "vendor_err"}, {"bytes", "byte_len"}, {"imm", "imm_data"},
		{"qpn", "qp_num"}, {"src_qpn", "src_qp"}, {"flags", "wc_flags"}, {"slid", "slid"}, {"sl", "sl"}}, false},
	{"gv_srq_init", "struct ibv_srq_init_attr", [][2]string{{"max_wr", "attr.max_wr"}, {"max_sge", "attr.max_sge"}, {"limit", "attr.srq_limit"}}, false},
	{"gv_ops", "struct ibv_context_ops", [][2]string{{"poll_cq", "poll_cq"}, {"req_notify_cq", "req_notify_cq"}, {"post_srq_recv", "post_srq_recv"}, {"post_send", "post_send"}, {"post_recv", "post_recv"}}, false},
	{"gv_context", "struct ibv_context", [][2]string{{"ops", "ops"}, {"cmd_fd", "cmd_fd"}, {"async_fd", "async_fd"}, {"vectors", "num_comp_vectors"}}, false},
	{"gv_channel", "struct ibv_comp_channel", [][2]string{{"fd", "fd"}}, false},
	{"gv_mr", "struct ibv_mr", [][2]string{{"lkey", "lkey"}, {"rkey", "rkey"}, {"addr", "addr"}}, false},
	{"gv_cq", "struct ibv_cq", [][2]string{{"context", "context"}, {"channel", "channel"}, {"entries", "cqe"}}, true},
	{"gv_qp", "struct ibv_qp", [][2]string{{"context", "context"}, {"number", "qp_num"}, {"state", "state"}, {"type", "qp_type"}}, true},
	{"gv_srq", "struct ibv_srq", [][2]string{{"context", "context"}}, true},
	{"gv_moderation", "struct ibv_modify_cq_attr", [][2]string{{"mask", "attr_mask"}, {"count", "moderate.cq_count"}, {"period", "moderate.cq_period"}}, false},
	{"gv_xrcd_init", "struct ibv_xrcd_init_attr", [][2]string{{"mask", "comp_mask"}, {"fd", "fd"}, {"flags", "oflags"}}, false},
	{"gv_event", "struct ibv_async_event", [][2]string{{"element", "element"}, {"type", "event_type"}}, false},
}

// constants are ours beside the system's names.
var constants = map[string]uint64{
	"IBV_WR_RDMA_WRITE": uint64(Write), "IBV_WR_RDMA_WRITE_WITH_IMM": uint64(WriteWithImm), "IBV_WR_SEND": uint64(SendOp), "IBV_WR_SEND_WITH_IMM": uint64(SendWithImm),
	"IBV_WR_RDMA_READ": uint64(Read), "IBV_WR_ATOMIC_CMP_AND_SWP": uint64(CompareSwap), "IBV_WR_ATOMIC_FETCH_AND_ADD": uint64(FetchAdd),
	"IBV_SEND_FENCE": Fence, "IBV_SEND_SIGNALED": Signaled, "IBV_SEND_SOLICITED": Solicited, "IBV_SEND_INLINE": Inline,
	"IBV_WC_RECV": uint64(WCRecv), "IBV_WC_RECV_RDMA_WITH_IMM": uint64(WCRecvWriteWithImm), "IBV_WC_WITH_IMM": WithImm,
	"IBV_WC_RDMA_READ": uint64(WCRead), "IBV_WC_FETCH_ADD": uint64(WCFetchAdd), "IBV_WC_COMP_SWAP": uint64(WCCompareSwap),
	"IBV_WC_WR_FLUSH_ERR": uint64(Flushed), "IBV_WC_REM_ACCESS_ERR": uint64(RemoteAccess), "IBV_WC_RETRY_EXC_ERR": uint64(RetryExceeded), "IBV_WC_RNR_RETRY_EXC_ERR": uint64(RNRRetryExceeded),
	"IBV_ACCESS_LOCAL_WRITE": uint64(LocalWrite), "IBV_ACCESS_REMOTE_WRITE": uint64(RemoteWrite), "IBV_ACCESS_REMOTE_READ": uint64(RemoteRead), "IBV_ACCESS_REMOTE_ATOMIC": uint64(RemoteAtomic),
	"IBV_ACCESS_RELAXED_ORDERING": uint64(RelaxedOrdering), "IBV_ACCESS_HUGETLB": uint64(HugeTLB), "IBV_ACCESS_ON_DEMAND": uint64(OnDemand),
	"IBV_QPT_RC": uint64(RC), "IBV_QPT_UC": uint64(UC), "IBV_QPT_UD": uint64(UD),
	"IBV_QPS_RESET": uint64(Reset), "IBV_QPS_INIT": uint64(Init), "IBV_QPS_RTR": uint64(RTR), "IBV_QPS_RTS": uint64(RTS), "IBV_QPS_SQD": uint64(SQD), "IBV_QPS_SQE": uint64(SQE), "IBV_QPS_ERR": uint64(Err),
	"IBV_QP_STATE": uint64(MaskState), "IBV_QP_ACCESS_FLAGS": uint64(MaskAccess), "IBV_QP_PKEY_INDEX": uint64(MaskPKey), "IBV_QP_PORT": uint64(MaskPort), "IBV_QP_QKEY": uint64(MaskQKey),
	"IBV_QP_AV": uint64(MaskAV), "IBV_QP_PATH_MTU": uint64(MaskMTU), "IBV_QP_TIMEOUT": uint64(MaskTimeout), "IBV_QP_RETRY_CNT": uint64(MaskRetry), "IBV_QP_RNR_RETRY": uint64(MaskRNRRetry),
	"IBV_QP_RQ_PSN": uint64(MaskRQPSN), "IBV_QP_MAX_QP_RD_ATOMIC": uint64(MaskMaxRDAtomic), "IBV_QP_MIN_RNR_TIMER": uint64(MaskMinRNRTimer), "IBV_QP_SQ_PSN": uint64(MaskSQPSN),
	"IBV_QP_MAX_DEST_RD_ATOMIC": uint64(MaskMaxDestRDAtomic), "IBV_QP_DEST_QPN": uint64(MaskDestQPN),
	"IBV_PORT_ACTIVE": uint64(PortActive), "IBV_LINK_LAYER_INFINIBAND": uint64(InfiniBand), "IBV_LINK_LAYER_ETHERNET": uint64(Ethernet),
	"IBV_MTU_256": 1, "IBV_MTU_4096": 5, "IBV_DEVICE_XRC": uint64(CapXRC), "IBV_ATOMIC_NONE": 0,
	"IBV_GID_TYPE_IB": uint64(GIDInfiniBand), "IBV_GID_TYPE_ROCE_V1": uint64(GIDRoCE1), "IBV_GID_TYPE_ROCE_V2": uint64(GIDRoCE2),
	"IBV_CQ_ATTR_MODERATE": 1, "IBV_XRCD_INIT_ATTR_FD|IBV_XRCD_INIT_ATTR_OFLAGS": 3,
	"IBV_EVENT_CQ_ERR": uint64(EventCQErr), "IBV_EVENT_QP_FATAL": uint64(EventQPFatal), "IBV_EVENT_DEVICE_FATAL": uint64(EventDeviceFatal), "IBV_EVENT_PORT_ACTIVE": uint64(EventPortActive), "IBV_EVENT_PORT_ERR": uint64(EventPortErr),
}

// TestABI lets the C compiler compare our declarations with the system's header.
func TestABI(t *testing.T) {
	const header = "/usr/include/infiniband/verbs.h"
	if _, err := os.Stat(header); err != nil {
		t.Skipf("no RDMA headers here to compare with (libibverbs-dev): %v", err)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler here: %v", err)
	}
	check := func(source string) (string, error) {
		file := filepath.Join(t.TempDir(), "abi.c")
		require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
		here, err := os.Getwd()
		require.NoError(t, err)
		out, err := exec.Command(cc, "-fsyntax-only", "-I", here, file).CombinedOutput()
		return string(out), err
	}
	source := "#include <infiniband/verbs.h>\n#include \"abi.h\"\n#include \"shim.h\"\n"
	for _, p := range pairs {
		ours := "struct " + p.ours
		compare := "=="
		if p.prefix {
			compare = "<="
		}
		source += fmt.Sprintf("_Static_assert(sizeof(%s) %s sizeof(%s), \"%s has another size\");\n", ours, compare, p.theirs, p.theirs)
		for _, f := range p.fields {
			source += fmt.Sprintf("_Static_assert(offsetof(%s, %s) == offsetof(%s, %s), \"%s.%s\");\n", ours, f[0], p.theirs, f[1], p.theirs, f[1])
			source += fmt.Sprintf("_Static_assert(sizeof(((%s *)0)->%s) == sizeof(((%s *)0)->%s), \"size of %s.%s\");\n", ours, f[0], p.theirs, f[1], p.theirs, f[1])
		}
	}
	for _, f := range [][2]string{{"modify_cq", "modify_cq"}, {"open_xrcd", "open_xrcd"}, {"close_xrcd", "close_xrcd"}, {"size", "sz"}} {
		source += fmt.Sprintf("_Static_assert(offsetof(struct gv_extended, context) - offsetof(struct gv_extended, %s) == offsetof(struct verbs_context, context) - offsetof(struct verbs_context, %s), \"%s\");\n",
			f[0], f[1], f[1])
	}
	for name, value := range constants {
		source += fmt.Sprintf("_Static_assert((%s) == %dULL, \"%s\");\n", name, value, name)
	}
	for ours, size := range map[string]uintptr{"gv_send": unsafe.Sizeof(Send{}), "gv_recv": unsafe.Sizeof(Recv{}), "gv_completion": unsafe.Sizeof(Completion{})} {
		source += fmt.Sprintf("_Static_assert(sizeof(%s) == %d, \"%s in Go\");\n", ours, size, ours)
	}
	out, err := check(source)
	require.NoError(t, err, out)
	_, err = check(source + "_Static_assert(sizeof(struct gv_wc) == 1, \"\");\n")
	require.Error(t, err, "the comparison can fail")
}
