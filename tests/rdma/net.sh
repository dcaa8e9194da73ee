# Sourced in the virtual machine: makes its RDMA devices.
#
#	rxe0, rxe5  on dummy0, 10.77.0.1, and dummy1, 10.80.0.1: any number of processes talk over either
#	rxe1, rxe2  on veth0, 10.78.0.1, and veth1, 10.78.0.2, in one network namespace (Linux 6.1's Soft-RoCE knows no other). Policy
#	            routing sends what is between them over the wire, where a link can be cut and packets lost. Their MTUs differ:
#	            RoCE makes 4096 of 4200 and 1024 of 1500. One processor takes what comes over them, so that they keep the order, as
#	            wires do: else packets of a QP overtake one another and are sent again.
#	rxe3, rxe4  on veth2, 10.79.0.1, and veth3, 10.79.0.2: another such wire
dummy() { # number address device
	ip link show dummy$1 >/dev/null 2>&1 || ip link add dummy$1 type dummy
	ip link set dummy$1 mtu 4200 up
	ip addr add $2/24 dev dummy$1
	rdma link add $3 type rxe netdev dummy$1
}
dummy 0 10.77.0.1 rxe0 || return 1
dummy 1 10.80.0.1 rxe5 || return 1

echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
wire() { # first-number network mtu mtu
	local i dev
	ip link add veth$1 type veth peer name veth$(($1 + 1)) || return 1
	for i in 0 1; do
		dev=veth$(($1 + i))
		ip link set $dev mtu $([ $i = 0 ] && echo $3 || echo $4) up
		echo 1 > /sys/class/net/$dev/queues/rx-0/rps_cpus
		ip addr add $2.$((i + 1))/24 dev $dev
		for k in accept_local=1 rp_filter=0 arp_ignore=1; do echo ${k#*=} > /proc/sys/net/ipv4/conf/$dev/${k%=*}; done
		ip route add $2.0/24 dev $dev table $((100 + $1 + i)) src $2.$((i + 1))
		ip rule add pref 10 oif $dev lookup $((100 + $1 + i))
	done
}
wire 0 10.78.0 4200 1500 || return 1
wire 2 10.79.0 4200 4200 || return 1
ip rule add pref 20 lookup local && ip rule del pref 0
for n in 0 2; do
	for i in 0 1; do
		ip neigh replace 10.$((78 + n / 2)).0.$((2 - i)) lladdr "$(cat /sys/class/net/veth$((n + 1 - i))/address)" nud permanent dev veth$((n + i))
		rdma link add rxe$((n + i + 1)) type rxe netdev veth$((n + i)) || return 1
	done
done
